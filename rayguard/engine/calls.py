"""Calls to an engine that are no requests: how an exception says which call it came out of.

A request goes on with the next engine. A call may be what ended this one, and may have taken effect: it is
made again only where it is known to change nothing (``rayguard.engine.vllm.door.calls``). Its exception
carries a mark, from the engine's adapter to whoever made the call (``RolloutMixin.with_engine``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rayguard.errors import EngineCallError
from rayguard.recovery.incident import MAX_CHAIN, attach

if TYPE_CHECKING:
    from rayguard.recovery.incident import Incident

_MARK = "__rayguard_engine_call__"


@dataclass(frozen=True, slots=True)
class EngineCall:
    """A call by its name, and the life of an engine that it was made to."""

    name: str
    life: int  # its ``id``: the mark may be pickled with the exception

    def was_made_to(self, life: object) -> bool:
        """Say whether it was made to this life of an engine."""
        return self.life == id(life)


def mark(error: BaseException, name: str, life: object) -> None:
    """Note on an exception that it came out of the call ``name`` to ``life``."""
    if hasattr(error, "__dict__"):
        error.__dict__.setdefault(_MARK, (name, id(life)))


def call_of(error: BaseException) -> EngineCall | None:
    """Return the call that ``error``, or something in its chain, came out of; None for anything else."""
    link: BaseException | None = error
    for _ in range(MAX_CHAIN):
        if link is None:
            return None
        found = getattr(link, _MARK, None)
        if isinstance(found, tuple):
            return EngineCall(*found)
        link = link.__cause__ or link.__context__
    return None


def lost(error: BaseException, incident: Incident | None) -> EngineCallError | None:
    """Return what the caller of an engine that was replaced gets, where ``error`` came out of a call to it.

    None where there was no such call: requests go on with the new engine, and the rest is asked of it again.
    """
    call = call_of(error)
    if call is None:
        return None
    told = EngineCallError(call.name, str(error) if incident is None else incident.cause)
    if incident is not None:
        attach(told, incident)
    return told
