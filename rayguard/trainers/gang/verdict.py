"""What becomes of a call of a gang when not all ranks answer. Pure: what was seen in, a decision out."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


class RankEnd(str, Enum):
    """How a rank's part of a call ended."""

    ANSWERED = "answered"
    RAISED = "raised"  # an error of its own
    CUT_OFF = "cut_off"  # an error because another rank went: from a collective, or after the gang was cut
    POISONED = "poisoned"  # an error after which the process can compute no more
    DEAD = "dead"
    STUCK = "stuck"  # it did not come back; its process was ended


@dataclass(frozen=True, slots=True, kw_only=True)
class RankOutcome:
    """One rank's part of a call. ``error`` is what it raised, ``cause`` a line about it for people."""

    rank: int
    end: RankEnd
    cause: str = ""
    error: BaseException | None = None

    @property
    def lost(self) -> bool:
        """Say whether the rank's process serves no more."""
        return self.end in {RankEnd.DEAD, RankEnd.STUCK, RankEnd.POISONED}


@dataclass(frozen=True, slots=True, kw_only=True)
class GangVerdict:
    """What to do: nothing (``ok``), or replace the ``lost`` and then answer with ``error`` or call again."""

    ok: bool = False
    lost: tuple[int, ...] = ()
    error: RankOutcome | None = None
    cause: str = ""


def decide_gang(outcomes: Sequence[RankOutcome], *, guilty: str = "") -> GangVerdict:
    """Return what becomes of a call, of which each rank's part has ended. ``guilty``: who hung, and why.

    A rank's own error is the caller's, as it would be without a gang: made again, the call would likely meet
    it again. Where a process died by itself, that is the cause, and an error of another rank may well follow
    from it: one of its own comes again.
    """
    lost = tuple(one.rank for one in outcomes if one.lost)
    if all(one.end is RankEnd.ANSWERED for one in outcomes):
        return GangVerdict(ok=True)
    raised = next((one for one in outcomes if one.end is RankEnd.RAISED), None)
    died = any(one.end in {RankEnd.DEAD, RankEnd.POISONED} for one in outcomes)
    if raised is not None and not died and not guilty:
        return GangVerdict(lost=lost, error=raised, cause=raised.cause)
    return GangVerdict(lost=lost, cause=guilty or _first_cause(outcomes))


def _first_cause(outcomes: Sequence[RankOutcome]) -> str:
    """Return what came first: all that died of themselves, else one of those that it is likely to be."""
    for end in _BY_NEARNESS:
        found = [one.cause for one in outcomes if one.end is end and one.cause]
        if found:
            return "; ".join(found if end is RankEnd.DEAD else found[:1])
    return "a collective broke"


_BY_NEARNESS = (RankEnd.POISONED, RankEnd.DEAD, RankEnd.STUCK, RankEnd.RAISED, RankEnd.CUT_OFF)
