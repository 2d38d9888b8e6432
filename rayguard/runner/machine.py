"""What to do when a command has ended: state and event in, state and action out. Pure.

Processes, files and the clock are elsewhere (``run`` enacts). Which settings avoid a failure is
``correction``; from which checkpoint a command goes on is ``resume``.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from rayguard.engine.settings import SAFE_SETTINGS
from rayguard.faults.diagnosis import Kind, Scope
from rayguard.recovery.budget import RestartBudget

if TYPE_CHECKING:
    from rayguard.faults.diagnosis import Diagnosis
    from rayguard.runner.correction import Correction
    from rayguard.runner.ending import Ending

_HOPELESS = {
    Kind.USER_CODE: "the failing code is the user's own: as it is, it fails again",
    Kind.DEPENDENCY_MISMATCH: "packages do not fit together: a restart does not change that",
    Kind.RUNTIME_ENV_FAILED: "Ray could not set up the job's environment: a restart does not change that",
}
_ONLY_CORRECTED = frozenset({Kind.CONFIG_INVALID, Kind.BATCH_INDIVISIBLE, Kind.LAUNCHER_MISCONFIG})
_PASSES = frozenset(  # with time: what holds it now lets go
    {
        Kind.PORT_CONFLICT,
        Kind.GCS_UNAVAILABLE,
        Kind.ACTOR_UNAVAILABLE,
        Kind.NODE_DIED,
        Kind.SCHEDULING_TIMEOUT,
        Kind.STORAGE_IO,
    }
)
_FIRST_WAIT_S, _LONGEST_WAIT_S = 5.0, 60.0
_MUCH_LONGER = 2.0  # than the time before


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPolicy:
    """How often a command is started again, and whether it may be.

    ``known``: a dialect reads it, or its user said that it may run twice. ``serves``: it is a server, which
    must not end. ``quick_s``: who fails sooner never got to work.
    """

    budget: RestartBudget = field(default_factory=lambda: RestartBudget(max_restarts=3, within_s=3600.0))
    known: bool = True
    serves: bool = False
    quick_s: float = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFailed:
    """The command ended, and should not have.

    ``corrections``: what may be changed for it and can be written, the mildest first. ``furthest``: the step
    of its last checkpoint. ``refused``: it printed how it is used, and not what happened. ``by_us``: rayguard
    ended it, so that the signal in its ending says nothing.
    """

    diagnosis: Diagnosis
    ending: Ending
    now: float
    lasted_s: float
    corrections: tuple[Correction, ...] = ()
    furthest: int | None = None
    refused: bool = False
    by_us: bool = False


@dataclass(frozen=True, slots=True)
class NoStart:
    """There is nothing that the command may go on from."""

    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """What one command has been through.

    Invariants: no correction stands twice in ``made``, none that was ``useless`` stands there.
    """

    furthest: int | None = None  # the step of the last checkpoint that was there
    restarts: tuple[float, ...] = ()  # wall-clock seconds
    made: tuple[Correction, ...] = ()  # in force, in the order they came
    useless: tuple[str, ...] = ()  # corrections that the framework refused when it was started with them
    seen: tuple[str, ...] = ()  # signatures of failures since the last progress
    lasted_s: float | None = None  # how long the command ran the time before
    tried_for: RunFailed | None = (
        None  # the failure for which the newest correction was made, while it is tried
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Start nothing more."""

    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Relaunch:
    """Start the command again after ``wait_s``, with all corrections of the state; ``added`` is new."""

    why: str
    added: Correction | None = None
    wait_s: float = 0.0


def handle(
    state: RunState, event: RunFailed | NoStart, policy: RunPolicy
) -> tuple[RunState, Stop | Relaunch]:
    """Return the next state and what to do about ``event``.

    Invariants: restarts within the budget's window never exceed it; what is the user's own error, or refuses
    its command line, is never started again as it stands; the same failure is met with the same settings
    twice only after progress.
    """
    if isinstance(event, NoStart):
        return state, Stop(why=event.why)
    if state.tried_for is not None and _refuses(event) and not progressed(state, event, policy):
        event = replace(state.tried_for, now=event.now)
        useless = (*state.useless, state.made[-1].name)
        state = replace(state, made=state.made[:-1], useless=useless, tried_for=None)
    return _decided(state, event, policy)


def _refuses(event: RunFailed) -> bool:
    """Say whether the command did not take its settings."""
    return event.refused or event.diagnosis.kind is Kind.CONFIG_INVALID


def _decided(state: RunState, event: RunFailed, policy: RunPolicy) -> tuple[RunState, Stop | Relaunch]:
    further = progressed(state, event, policy)
    again = not further and event.diagnosis.signature in state.seen
    added = _next_correction(state, event, again=again)
    state = _noted(state, event, further=further)
    why = _never(event) or ("" if added else _in_vain(event, policy, further=further, again=again))
    if not why and not policy.known:
        why = (
            "no framework that rayguard knows: it may overwrite what it made, so it is not started again "
            "(--retry-unknown allows it)"
        )
    if not why and not policy.budget.allows(state.restarts, event.now):
        budget = policy.budget
        why = f"the budget is spent ({budget.max_restarts} restarts in {budget.within_s:.0f} s)"
    if why:
        return state, Stop(why=why)
    state = replace(state, restarts=(*policy.budget.recent(state.restarts, event.now), event.now))
    wait_s = _wait_s(len(state.restarts), policy, event)
    if added is None:
        return replace(state, tried_for=None), Relaunch(
            why=_same(event, policy, further=further), wait_s=wait_s
        )
    state = replace(state, made=(*state.made, added), tried_for=event)
    return state, Relaunch(why="known to avoid it", added=added, wait_s=wait_s)


def progressed(state: RunState, event: RunFailed, policy: RunPolicy) -> bool:
    """Say whether it got further than the time before: a later checkpoint, or it ran much longer."""
    if event.furthest is not None and (state.furthest is None or event.furthest > state.furthest):
        return True
    if policy.serves:
        return event.lasted_s >= policy.quick_s
    before = state.lasted_s
    return before is not None and event.lasted_s >= max(_MUCH_LONGER * before, before + policy.quick_s)


def _next_correction(state: RunState, event: RunFailed, *, again: bool) -> Correction | None:
    taken = {one.name for one in state.made} | set(state.useless)
    found = next((one for one in event.corrections if one.name not in taken), None)
    diagnosis = event.diagnosis
    transient = diagnosis.retry_same_settings and not diagnosis.deterministic and not again
    # Safe settings cost speed for the rest of the run: not for what may not come again.
    return None if transient and found is not None and found.name in SAFE_SETTINGS else found


def _noted(state: RunState, event: RunFailed, *, further: bool) -> RunState:
    seen = () if further else state.seen
    found = (one for one in (state.furthest, event.furthest) if one is not None)
    return replace(
        state,
        furthest=max(found, default=None),
        seen=(*(one for one in seen if one != event.diagnosis.signature), event.diagnosis.signature),
        lasted_s=event.lasted_s,
    )


def _never(event: RunFailed) -> str:
    """Return why nothing is to be started again, whatever is known to avoid the failure; '' for no reason."""
    if event.ending.told_to_go is not None and not event.by_us:
        return "a person or a scheduler told it to end"
    if event.diagnosis.scope is Scope.CODE:
        return _HOPELESS[Kind.USER_CODE]
    if event.diagnosis.scope is Scope.REQUEST:
        return "one request or sample is wrong, and comes again with the same data"
    return _HOPELESS.get(event.diagnosis.kind, "")


def _in_vain(event: RunFailed, policy: RunPolicy, *, further: bool, again: bool) -> str:
    """Return why the same settings would fail again, '' where they may do."""
    diagnosis = event.diagnosis
    if event.refused:
        return "the command line is refused: correct it first"
    if diagnosis.deterministic or diagnosis.kind in _ONLY_CORRECTED:
        return "the same settings fail again, and no other setting is known that rayguard could write"
    if again:
        return "the same failure came again, and the command got no further in between"
    if further:
        return ""
    if diagnosis.kind is Kind.UNKNOWN and event.ending.signal is None and event.lasted_s < policy.quick_s:
        return "it failed at once, of something that the catalog does not know"
    return "" if diagnosis.retry_same_settings else "the same settings fail again"


def _same(event: RunFailed, policy: RunPolicy, *, further: bool) -> str:
    if policy.serves:
        return "a server must not end"
    if further:
        return "it had got further"
    return "it may not come again" if event.diagnosis.retry_same_settings else "it may pass"


def _wait_s(restarts: int, policy: RunPolicy, event: RunFailed) -> float:
    if event.diagnosis.kind not in _PASSES and not policy.serves:
        return 0.0
    return min(_LONGEST_WAIT_S, _FIRST_WAIT_S * 2.0 ** (restarts - 1))
