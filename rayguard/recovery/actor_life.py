"""One life of a guarded actor: may it begin, what of the last one is lost, which calls are let through.

Pure: state and event in, state and verdict out. Ray's tables, the clock and the actor itself are with
``rayguard.actors.guard.restarts``; what is kept of a life, with ``rayguard.actors.life.restorable``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rayguard.recovery.budget import RestartBudget

REPEATED_S = 300.0  # Ray repeats a call as soon as the next life is there
BEGUN_ANEW = "Ray began it anew, as its user asked: what it held is gone"
NOTHING_KEPT = "its last process had kept no state yet"
GOES_ON = "it goes on from an earlier state"
TOO_OLD = "it does not go on from an earlier state"
OF_A_GROUP = "its last process was a member of a process group; alone it cannot take that place again"


class LifePhase(str, Enum):
    """How far the life in this process is."""

    UNKNOWN = "unknown"  # nobody has asked yet what lives here
    ENTERING = "entering"  # it is being found out which life this is
    ENTERED = "entered"  # it may begin: with `__init__`, or with the first call
    BEGUN = "begun"  # it began; its state is restored, or is about to be
    REFUSED = "refused"  # every call is answered with why
    ABSENT = "absent"  # no guarded actor will ever live here


class Refusal(str, Enum):
    """Why a life may not go on."""

    BUDGET = "budget"  # too many processes died in too short a time
    STATE = "state"  # its state cannot be had: it must not go on as if it were new
    GROUP = "group"  # it was one of a group that its death ended


class CallVerdict(str, Enum):
    """What becomes of a call."""

    GOES_ON = "goes_on"
    ANSWERED = "answered"  # by the last life: that answer is given again
    CUT_OFF = "cut_off"  # by the last death, and it must not run twice
    REFUSED = "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorLife:
    """What is known of the life in this process. ``restarts``: wall-clock seconds, of those that count.

    ``lost``: what of the actor's state this life does not have, for people. ``answered``, ``cut_off``: calls
    of the last life, by Ray's task ids, which Ray may repeat ``until`` (monotonic seconds).
    """

    phase: LifePhase = LifePhase.UNKNOWN
    refusal: Refusal | None = None
    restarts: tuple[float, ...] = ()
    lost: str = ""
    answered: frozenset[str] = frozenset()
    cut_off: frozenset[str] = frozenset()
    until: float = 0.0

    @property
    def asks(self) -> bool:
        """Whether calls have to ask before they run."""
        settled = self.phase in {LifePhase.BEGUN, LifePhase.ABSENT}
        return not settled or bool(self.answered or self.cut_off)


@dataclass(frozen=True, slots=True, kw_only=True)
class LifeEntered:
    """It is known which life this is, ``number`` 0 for the first.

    ``unsaid``: it is Ray that restarts it, as its user asked. ``recycled``: its last process was replaced on
    purpose, within a budget of its own. ``of_a_group``: that process was a member of a process group;
    ``asked``: its user asked for the restart. ``earlier``: restarts before this one, ``now``: wall clock.
    """

    number: int
    now: float
    budget: RestartBudget
    earlier: tuple[float, ...] = ()
    unsaid: bool = False
    recycled: bool = False
    of_a_group: bool = False
    asked: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LifeBegan:
    """The outermost ``__init__`` begins, or the first call of an actor that has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateFound:
    """What the last life left; ``kept`` False: nothing. ``missing``: the names of calls that ended since.

    ``may_lack``: its user takes a state that lacks something: asked Ray for restarts, or for fewer snapshots.
    """

    now: float  # monotonic
    kept: bool = True
    missing: tuple[str, ...] = ()
    may_lack: bool = True
    cut_off: frozenset[str] = frozenset()
    answered: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class StateUnreadable:
    """There was a state, and it cannot be had."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallArrived:
    """A call of the actor is about to run: ``call`` is Ray's id of it. ``now`` is monotonic."""

    call: str
    now: float
    may_run_twice: bool = False


LifeEvent = LifeEntered | LifeBegan | StateFound | StateUnreadable | CallArrived


def handle(life: ActorLife, event: LifeEvent) -> tuple[ActorLife, CallVerdict]:
    """Return what the life is after ``event``, and what becomes of the call, or of the life's beginning.

    Invariants: a life that was refused never goes on, one whose state lacks something only where its user
    takes that; no call is let through of which the last life had the
    answer, or that was cut off and must not run twice; only restarts of our own count against the budget.
    """
    match event:
        case LifeEntered():
            life = _entered(life, event)
        case LifeBegan():
            life = replace(life, phase=LifePhase.BEGUN) if life.phase is LifePhase.ENTERED else life
        case StateFound():
            life = _found(life, event)
        case StateUnreadable():
            life = replace(life, phase=LifePhase.REFUSED, refusal=Refusal.STATE)
        case CallArrived():
            return _arrived(life, event)
    return life, CallVerdict.REFUSED if life.refusal else CallVerdict.GOES_ON


def _entered(life: ActorLife, event: LifeEntered) -> ActorLife:
    if event.number == 0:
        return replace(life, phase=LifePhase.ENTERED)
    allowed = event.recycled or event.unsaid or event.budget.allows(event.earlier, event.now)
    restarts = event.budget.recent(event.earlier, event.now)
    life = replace(life, restarts=(*restarts, event.now) if allowed and not event.recycled else restarts)
    if not allowed:
        return replace(life, phase=LifePhase.REFUSED, refusal=Refusal.BUDGET)
    if event.of_a_group and not event.recycled:
        if not (event.asked or event.unsaid):
            return replace(life, phase=LifePhase.REFUSED, refusal=Refusal.GROUP)
        life = replace(life, lost=OF_A_GROUP)
    if event.unsaid and not event.recycled:
        life = replace(life, lost=BEGUN_ANEW)
    return replace(life, phase=LifePhase.ENTERED)


def _found(life: ActorLife, event: StateFound) -> ActorLife:
    lost = life.lost
    if not event.kept:
        lost = lost or NOTHING_KEPT
    elif event.missing:
        lost = f"{GOES_ON if event.may_lack else TOO_OLD}: {_calls(event.missing)} lost"
    if lost and not event.may_lack:
        return replace(life, phase=LifePhase.REFUSED, refusal=Refusal.STATE, lost=lost)
    return replace(
        life,
        lost=lost,
        answered=event.answered,
        cut_off=event.cut_off,
        until=event.now + REPEATED_S,
    )


def _calls(names: tuple[str, ...]) -> str:
    """Return "3 calls (step, step, sync) that had ended since are"."""
    known = [name for name in names if name]
    said = f" ({', '.join(known)})" if known else ""
    count = f"1 call{said}" if len(names) == 1 else f"{len(names)} calls{said}"
    return f"{count} that had ended since {'is' if len(names) == 1 else 'are'}"


def _arrived(life: ActorLife, event: CallArrived) -> tuple[ActorLife, CallVerdict]:
    if life.refusal is not None:
        return life, CallVerdict.REFUSED
    if event.now > life.until:
        return replace(life, answered=frozenset(), cut_off=frozenset()), CallVerdict.GOES_ON
    if event.call in life.answered:
        return life, CallVerdict.ANSWERED  # and once more, should this answer be lost, too
    if event.call not in life.cut_off:
        return life, CallVerdict.GOES_ON
    life = replace(life, cut_off=life.cut_off - {event.call})
    return life, CallVerdict.GOES_ON if event.may_run_twice else CallVerdict.CUT_OFF
