"""How a process of an engine shows what it continues exactly, and how its owner sees that.

A claim is a memory file, which the kernel shows by its name: nothing to clean up, nothing that a later
process with the same pid could inherit. What is claimed is put in by ``installer``.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from rayguard.engine.continuation import PLAIN, Exact
from rayguard.faults.fault import Role
from rayguard.process.identity import open_files

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rayguard.engine.protocol import EngineProcess
    from rayguard.engine.vllm.interfaces import VllmConfig

CORE, OUTPUTS, HIDDEN = "core", "outputs", "hidden"
_CLAIM = "rayguard-exact:"
_claimed: dict[tuple[int, str], int] = {}  # (pid, claim) -> descriptor: a forked child claims for itself


def claim(what: str) -> None:
    """Show to whom may look at this process that it can do ``what``, for as long as it lives."""
    if (os.getpid(), what) not in _claimed:
        _claimed[os.getpid(), what] = os.memfd_create(_CLAIM + what, os.MFD_CLOEXEC)


def exactness(processes: Iterable[EngineProcess], config: VllmConfig) -> Exact:
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


def _claims(pid: int) -> set[str]:
    prefix = f"/memfd:{_CLAIM}"
    with suppress(OSError):  # gone, or not ours to look at
        shown = (name for _, name in open_files(pid) if name.startswith(prefix))
        return {name.removeprefix(prefix).removesuffix(" (deleted)") for name in shown}
    return set()
