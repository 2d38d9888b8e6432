"""What to do about a fault: one value, decided by ``rayguard.recovery.machine``, carried out by others."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Action(str, Enum):
    """The acts of recovery, gentle to harsh."""

    NONE = "none"  # nothing to repair: the error goes to its caller
    ANSWER_ERROR = "answer_error"  # the request's own fault: answer it, touch nothing else
    RETRY = "retry"  # call again in the same process
    QUARANTINE = "quarantine"  # answer this request with an error, go on with the others
    RESTART_ENGINE = "restart_engine"  # rebuild the engine in the same process
    RESTART_PROCESS = "restart_process"  # the process must die; Ray starts it again
    RELIEVE = "relieve"  # give memory back before it runs out
    GIVE_UP = "give_up"  # the budget is spent: a final error that tells the story


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """One decision.

    ``applied`` names the safe settings of the next engine, in the order they came; ``added`` the one that
    this decision adds, if any, or which relief it is.
    """

    action: Action
    rung: int = 0
    applied: tuple[str, ...] = ()
    added: str = ""
    reason: str = ""

    @property
    def label(self) -> str:
        """Short text for tables, metrics and logs: the action and what it adds."""
        return f"{self.action.value}+{self.added}" if self.added else self.action.value


RECYCLED = Remedy(action=Action.RELIEVE, added="recycle")  # a new process, by intent: no death to be counted
HIRED_ANEW = Remedy(action=Action.RESTART_PROCESS, added="hired_anew")  # by its pool: another actor
WATCHED = Remedy(action=Action.NONE, reason="only watched: nothing is done about it")
UNTRIED = ("", Action.NONE.value, Action.ANSWER_ERROR.value)  # labels of what cures nothing, by intent
