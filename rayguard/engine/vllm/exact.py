"""Runs inside vLLM's core and workers: a continued request takes up its output where another core left it.

vLLM knows requests that have output and no cache: it makes them itself when it preempts one, and computes
them again. A continued request enters a new core as one of those, so that everything which asks for its
output finds it: penalties, bad words, limits, stops, repetition, logits processors. What a preempted request
keeps in memory besides is brought back too: the state of its grammar, the draws of its seeded generator, its
thinking budget.

Only requests with the mark of ``rayguard.engine.continuation`` are touched, once each, when they are added;
nothing is in the path of a step. Into a vLLM that looks otherwise nothing is installed. A process that can do
it shows so in a way that ends with the process; ``exactness`` reads that in the owner.

Not here: which requests may be continued, and what they are sent with: ``continuation``. Under speculative
decoding the draws are not as many as the tokens: seeds and thinking budgets are not brought back there.
"""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rayguard.engine.continuation import PLAIN, Exact
from rayguard.faults.fault import Role
from rayguard.recovery.tally import TALLY

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rayguard.engine.protocol import EngineProcess

_log = logging.getLogger("rayguard")
_CLAIM = "rayguard-exact:"  # name of the memory file by which a process shows what it can
CORE, OUTPUTS, HIDDEN = "core", "outputs", "hidden"
_claimed: dict[tuple[int, str], int] = {}  # (pid, claim) -> descriptor: a forked child claims for itself


def inside_an_engine() -> bool:
    """Say whether this process has vLLM's core or worker loaded, as each has that vLLM loads plugins in.

    Elsewhere the install would import for many seconds what nobody uses.
    """
    return "vllm.v1.engine.core" in sys.modules or "vllm.v1.worker.worker_base" in sys.modules


def install() -> bool:
    """Let this process of an engine continue requests exactly; return whether it can now. Never raises."""
    try:
        from rayguard.engine.vllm.exact_core import CorePart  # noqa: PLC0415 - the engine's processes alone
        from rayguard.engine.vllm.exact_worker import WorkerPart  # noqa: PLC0415

        core, worker = CorePart(), WorkerPart(claim)
        if not (core.fits() and worker.fits()):
            _log.warning("rayguard does not know this vLLM: requests are continued, but less exactly")
            return False
        core.put_in()
        worker.put_in()
        claim(CORE)
    except Exception:  # noqa: BLE001 - the edge where vLLM's plugin loader calls in: a start must not fail for this
        _log.exception("rayguard cannot make continued requests exact")
        TALLY.guard_error("vllm_exact")
        return False
    return True


def exactness(processes: Iterable[EngineProcess], config: Any) -> Exact:
    """Return what the engine of these processes, built with vLLM's ``config``, continues exactly.

    vLLM's second model runner (``vllm/v1/worker/gpu``) takes requests with output as it is, and makes its
    noise from seed and position: it needs the core's part alone (from source, not verified on a GPU).
    """
    shown = [(known.role, _claims(known.process.pid)) for known in processes]
    cores = [claims for role, claims in shown if role is Role.ENGINE_CORE]
    if not cores or not all(CORE in claims for claims in cores):
        return PLAIN
    one_draw_a_token = getattr(config, "speculative_config", None) is None
    if getattr(config, "use_v2_model_runner", False):
        return Exact(outputs=True, hidden=one_draw_a_token)
    if getattr(config.model_config, "use_fp64_gumbel", False):  # another kind of draw
        one_draw_a_token = False
    wanted = len(cores) * config.parallel_config.world_size
    outputs, hidden = (sum(what in claims for _, claims in shown) >= wanted for what in (OUTPUTS, HIDDEN))
    return Exact(outputs=outputs, hidden=outputs and hidden and one_draw_a_token)


def claim(what: str) -> None:
    """Show to whom may look at this process that it can do ``what``, for as long as it lives.

    A memory file, which the kernel shows by its name: nothing to clean up, nothing that a later process
    with the same pid could inherit.
    """
    if (os.getpid(), what) not in _claimed:
        _claimed[os.getpid(), what] = os.memfd_create(_CLAIM + what, os.MFD_CLOEXEC)


def _claims(pid: int) -> set[str]:
    found: set[str] = set()
    try:
        descriptors = list(Path(f"/proc/{pid}/fd").iterdir())
    except OSError:  # gone, or not ours to look at
        return found
    for descriptor in descriptors:
        try:
            shown = str(descriptor.readlink())
        except OSError:  # closed while we looked
            continue
        if shown.startswith(f"/memfd:{_CLAIM}"):
            found.add(shown.removeprefix(f"/memfd:{_CLAIM}").removesuffix(" (deleted)"))
    return found
