"""Runs inside vLLM's core and workers: a continued request takes up its output where another core left it.

vLLM knows requests that have output and no cache: it makes them itself when it preempts one, and computes
them again. A continued request enters a new core as one of those, so that everything which asks for its
output finds it: penalties, bad words, limits, stops, repetition, logits processors. What a preempted request
keeps in memory besides is brought back too: the state of its grammar, the draws of its seeded generator.

Only requests with the mark of ``rayguard.engine.continuation`` are touched, once each, when they are added;
nothing is in the path of a step. Into a vLLM that looks otherwise nothing is installed. A process that can do
it claims so (``claims``).

Not here: which requests may be continued, and what they are sent with: ``rayguard.engine.continuation``.
Under speculative decoding the draws are not as many as the tokens: seeds are not brought back there.
"""

from __future__ import annotations

import logging
import sys

from rayguard.engine.vllm.exact.claims import CORE, claim
from rayguard.harmless import harmless

_log = logging.getLogger("rayguard")


def inside_an_engine() -> bool:
    """Say whether this process has vLLM's core or worker loaded, as each has that vLLM loads plugins in.

    Elsewhere the install would import for many seconds what nobody uses.
    """
    return "vllm.v1.engine.core" in sys.modules or "vllm.v1.worker.worker_base" in sys.modules


def install() -> bool:
    """Let this process of an engine continue requests exactly; return whether it can now. Never raises."""
    with harmless("vllm_exact"):  # vLLM's plugin loader calls in here: a start must not fail for this
        from rayguard.engine.vllm.exact import core, worker  # noqa: PLC0415 - the engine's processes alone

        if not (core.fits() and worker.fits()):
            _log.warning("rayguard does not know this vLLM: requests are continued, but less exactly")
            return False
        core.put_in()
        worker.put_in()
        claim(CORE)
        return True
    return False
