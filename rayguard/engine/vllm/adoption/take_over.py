"""The engine core's part of a take-over: end what ran, belong to the heir, say what it holds.

What ran ends with the owner already: nobody could hear of it, and heirs start sooner on an idle machine.
``rayguard_take_over`` is a method that a client calls as one of vLLM's own utilities. What the core was asked
to do since it was built is noted: one that is no longer as it was built is not taken over.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from rayguard.engine.vllm.adoption import records, ties
from rayguard.engine.vllm.patch import takes, wrap
from rayguard.engine.vllm.receiver import ASK, MOVE_RECORDS
from rayguard.harmless import harmless

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from rayguard.engine.vllm.adoption.interfaces import OwnCore

TAKE_OVER = "rayguard_take_over"
_log = logging.getLogger("rayguard")
# Calls that leave an engine as it is, but for what a take-over puts right. Of others nobody knows.
_HARMLESS = frozenset(
    {
        TAKE_OVER,
        "get_supported_tasks",
        "get_weight_version",
        "set_weight_version",  # says what a push of ours has proved
        "reset_prefix_cache",
        "reset_mm_cache",
        "reset_encoder_cache",
        "is_sleeping",
        "is_scheduler_paused",
        "list_loras",
        "get_status",
    }
)
_PAUSE, _RESUME = "pause_scheduler", "resume_scheduler"
_OURS = "rayguard_"  # what our own calls into the workers are called
_cores: list[OwnCore] = []  # the one of this process, once it was asked for something


def install() -> bool:
    """Let the core of this process be taken over; return whether it can be now. Never raises."""
    with harmless("adoption"):
        from vllm.v1.engine.core import EngineCoreProc  # noqa: PLC0415 - in the core alone

        handle = EngineCoreProc._handle_client_request  # noqa: SLF001 - the one way in
        if not takes(handle, "self", "request_type", "request"):
            _log.warning("rayguard does not know this vLLM: its engines end with their actors")
            return False
        wrap(EngineCoreProc, "_handle_client_request", _noting)
        ties.stops.append(_end_requests)
        setattr(EngineCoreProc, TAKE_OVER, _take_over)
        return True
    return False


def _noting(
    handle: Callable[..., None], core: OwnCore, request_type: object, request: tuple[object, ...]
) -> None:
    _cores[:] = [core]
    if getattr(request_type, "name", "") == "UTILITY":
        name, arguments = str(request[2]), request[3]
        if name in {_PAUSE, _RESUME}:
            core.rayguard_paused = name == _PAUSE
        elif name not in _HARMLESS and not _is_ours(name, arguments):
            core.rayguard_changed = name
    handle(core, request_type, request)


def _is_ours(name: str, arguments: object) -> bool:
    first = str(arguments[0]) if isinstance(arguments, (list, tuple)) and arguments else ""
    return name == "collective_rpc" and first.startswith(_OURS)


def _end_requests() -> None:
    """Have the core end all requests that it has. From any thread; what is asked later is not touched."""
    with harmless("adoption"):
        from vllm.v1.engine import EngineCoreRequestType  # noqa: PLC0415 - in the core alone

        for core in _cores:
            core.input_queue.put_nowait((EngineCoreRequestType.ABORT, list(core.scheduler.requests)))


def _take_over(core: OwnCore, mark: str, directory: str) -> Mapping[str, object]:
    """Belong to the owner that ``mark`` names; return the receipts of the workers' weights.

    Raises:
        RuntimeError: It is no longer as it was built, so no heir could go on with it.
    """
    if changed := getattr(core, "rayguard_changed", ""):
        raise RuntimeError(f"{changed!r} was called on it, which may have changed it")
    if getattr(core, "rayguard_paused", False):
        raise RuntimeError("its scheduler is paused: weights were on their way to it")
    aborted = list(core.scheduler.requests)
    core.abort_requests(aborted)
    core.reset_mm_cache()  # the heir's own begins empty
    ties.here().taken(mark)
    records.move(directory)
    core.collective_rpc(MOVE_RECORDS, None, (directory,), None)
    return {"aborted": len(aborted), "receipts": core.collective_rpc(ASK, None, (), None)}
