"""What the keeper of a standby does next: what is there in, one step out.

Pure; whose hands take the steps: ``rayguard.engine.standby.keeper``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

LOOK_S = 2.0  # how often a standby is looked at that nobody says anything about
FIRST_PAUSE_S = 5.0
LONGEST_PAUSE_S = 600.0
SETTLED_S = 60.0  # a standby that lived this long was not at fault for the failures before it


class Step(Enum):
    """One thing to do."""

    END = "end"  # an engine that was replaced: first, for it may hold what the next one needs
    DROP = "drop"  # the standby at hand: it died, or has other settings than are in force
    BUILD = "build"
    PREPARE = "prepare"  # bring the standby to the weights of the engine that serves
    REST = "rest"


@dataclass(frozen=True, slots=True, kw_only=True)
class StandbyView:
    """What the keeper sees at ``now``.

    ``wanted`` are the settings in force; None while nobody asks for a standby (one at hand is then kept).
    ``has`` are those of the standby at hand, None where there is none; ``behind`` says that it lacks the
    weights of the engine that serves. Nothing is tried before ``not_before``.
    """

    now: float
    leaving: bool = False
    wanted: tuple[str, ...] | None = None
    has: tuple[str, ...] | None = None
    fit: bool = True
    behind: bool = False
    can_push: bool = True
    not_before: float = 0.0


def next_step(view: StandbyView) -> tuple[Step, float]:
    """Return what to do, and for a rest how long at most.

    Invariants: there is never more than one standby; none is built while an engine is still to be ended.
    """
    if view.leaving:
        return Step.END, 0.0
    if view.has is not None and (not view.fit or view.wanted not in {None, view.has}):
        return Step.DROP, 0.0
    paused_s = view.not_before - view.now
    if paused_s > 0:
        return Step.REST, min(LOOK_S, paused_s)
    if view.wanted is not None and view.has is None:
        return Step.BUILD, 0.0
    if view.has is not None and view.behind and view.can_push:
        return Step.PREPARE, 0.0
    return Step.REST, LOOK_S


def pause_s(failures: int) -> float:
    """Return how long to leave it alone after so many failures in a row."""
    return float(min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** min(failures - 1, 30)))
