"""Process restarts of a guarded actor: noticed, counted across lives, bounded; its state restored.

What becomes of a life and of a call is decided by ``rayguard.recovery.actor_life``; this carries it out.
Which life this is, is found out by ``life_entry``; when a process must be ended is decided elsewhere; how
that is done, ``rayguard.actors.life.process_exit``.
"""

from __future__ import annotations

import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from rayguard.actors.guard import life_entry
from rayguard.actors.life import current_life, graceful_exit, incidents, process_group, saved_state
from rayguard.actors.life.incarnation import PROCESS_PART, ActorMemory
from rayguard.actors.life.last_answer import Answer, LastAnswers, current_task
from rayguard.actors.life.retries import ray_is_to_repeat, user_asked
from rayguard.actors.mark import StateRule, mark_of, may_run_twice
from rayguard.actors.memory import call_boundary
from rayguard.errors import CallLostError, GroupMemberError, StateLostError
from rayguard.faults.fault import Role
from rayguard.harmless import harmless
from rayguard.ray_internals.worker import inside_ray_worker, this_actor
from rayguard.recovery.actor_life import (
    ActorLife,
    CallArrived,
    CallVerdict,
    LifeBegan,
    LifeEvent,
    LifePhase,
    StateFound,
    StateUnreadable,
    handle,
)
from rayguard.recovery.incident import Outcome

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rayguard.actors.life.incarnation import Incarnation
    from rayguard.actors.life.restorable import KeptState


_MAKE_IT_AGAIN = (
    "The actor is as it was before it: make the call again where that is right, or say that it may run twice "
    "(@rayguard.method(idempotent=True), guard(idempotent=True)), and Ray's repeat of it is let through"
)
_EFFECT_KEPT = "Its effect is in the actor's state; only its answer is lost"
_PATIENCE_S = 60.0  # of a call that comes while the life is entered; Ray's table answers in milliseconds


class EarlierAnswers(Protocol):
    """What the last life answered, for the calls that Ray repeats."""

    def to(self, task: str) -> Answer | None:
        """Return the answer to a call, or raise its error; None: only that it was answered is known."""

    def forget(self) -> None:
        """Nobody will ask any more."""


class LifeHands:
    """What this process holds of the life in it, beside ``current_life``; one guarded actor lives here."""

    __slots__ = ("asks", "earlier", "error", "lock")

    def __init__(self) -> None:
        self.asks = True  # whether guarded calls ask `admit`: see `ActorLife.asks`
        self.lock = threading.RLock()  # what is called as a life is entered must not wait for itself
        self.earlier: EarlierAnswers | None = None
        self.error: Exception | None = None  # that answers each call of a life that was refused


hands = LifeHands()


def begin(instance: object) -> bool:
    """Enter the life of ``instance``; say whether its ``__init__`` may run. Whoever comes meanwhile waits.

    False when the restart budget is spent: what ended the lives before may well be in ``__init__`` itself.

    Raises:
        GroupMemberError: The last process was one of a group: Ray then gives the actor up, as without us.
    """
    with harmless("begin"):
        if _phase() in {LifePhase.UNKNOWN, LifePhase.ENTERING}:
            with _held():
                if _phase() is LifePhase.UNKNOWN:
                    _enter(instance)
    if this_actor() is not instance or current_life.state.life.refusal is None:
        return True
    if isinstance(hands.error, GroupMemberError):
        raise hands.error
    return False


def opening(instance: object) -> bool:
    """Say, once, that ``instance`` is this process's actor and its outermost ``__init__`` begins here."""
    if this_actor() is not instance or _phase() is not LifePhase.ENTERED:
        return False
    _step(LifeBegan())
    return True


def resume(instance: object) -> None:
    """Give an actor the state that its last process kept; after ``__init__``, before any call.

    Raises:
        StateLostError: It cannot be had: the actor must not go on as if it were new.
    """
    life, restorable = current_life.state.incarnation, False
    with harmless("snapshot"):
        mark = mark_of(type(instance))
        restorable = mark is not None and mark.state is StateRule.RESTORABLE and not mark.watching
    before = None
    try:
        recycled = life.number > 0 and _resumed(instance, life)
        if restorable and life.number > 0 and not recycled:
            before = _restored(instance, life)
    except StateLostError as error:
        hands.error = error
        _step(StateUnreadable())
        life_entry.state_refused(error)
        raise
    if life.restartable:
        _keep(instance, life, before, restorable=restorable)


def _resumed(instance: object, life: Incarnation) -> bool:
    recycled = saved_state.resume(instance, life)
    with harmless("kept answer"):
        answers = LastAnswers.of(life)
        if answers is not None:
            hands.earlier = answers
            _step(StateFound(now=time.monotonic(), answered=answers.tasks))
    return recycled


def _restored(instance: object, life: Incarnation) -> KeptState | None:
    from rayguard.actors.life import restorable  # noqa: PLC0415 - only where there is state
    from rayguard.actors.life.calls_since import replay  # noqa: PLC0415 - as above

    kept = restorable.found(life)
    if kept is None:
        lacks = restorable.is_unkept(life)
        found = StateFound(now=time.monotonic(), kept=False)
    else:
        restorable.restore(instance, kept)
        hands.earlier = kept
        missing = replay(instance, kept.lost, kept.since)
        lacks = bool(missing) and not restorable.is_kept_seldom(type(instance))
        found = StateFound(
            now=time.monotonic(),
            missing=missing,
            cut_off=kept.running | kept.undone,
            answered=kept.tasks,
        )
    _step(replace(found, may_lack=not lacks or user_asked(life.actor_id)))
    if current_life.state.life.refusal is not None:
        raise life_entry.state_lost(type(instance).__name__)
    return kept


def _keep(instance: object, life: Incarnation, before: KeptState | None, *, restorable: bool) -> None:
    with harmless("snapshot"):
        mark = mark_of(type(instance))
        if mark is None or mark.watching or mark.state is StateRule.UNSAID or mark.role is Role.ROLLOUT:
            return
        note = process_group.GroupNote(life)
        note.now()
        call_boundary.group = note
        if restorable:
            from rayguard.actors.life import snapshot_files  # noqa: PLC0415 - only where there is state
            from rayguard.actors.life.restorable import StateKeeper  # noqa: PLC0415

            keeper = StateKeeper(instance, life, before)
            keeper.keep()
            call_boundary.keeper = keeper
            snapshot_files.sweep_aside()


def served(instance: object) -> None:
    """Close the incident that led to this life: the actor, if ``instance`` is it, works again."""
    now = current_life.state
    if now.incident is None or now.life.refusal is not None or this_actor() is not instance:
        return
    with _held():
        incident, lost = current_life.state.incident, current_life.state.life.lost
        if incident is None:  # another thread has closed it
            return
        told = replace(incident, notes=(*incident.notes, lost) if lost else incident.notes)
        told = incidents.closed(told, Outcome.STATE_LOST if lost else Outcome.RECOVERED, served=True)
        current_life.state = replace(current_life.state, incident=None, told=told)
    with harmless("journal"):
        word = life_entry.word_of(now.life, incident, served=True)
        ActorMemory(now.incarnation.actor_id, PROCESS_PART).save(word)
        incidents.record(told)
        if not lost:
            return
        said = f"rayguard: {type(instance).__name__}: {incident.cause}; {lost}"
        print(said, file=sys.stderr, flush=True)  # noqa: T201 - Ray brings it to the driver's log


def admit(instance: object, name: str) -> Answer | None:
    """Hold a call in a process that is about to end; let it through. An answer: the last process had one.

    Raises:
        CallLostError: The last process died of or during this call, and it must not run twice.
        GaveUpError: The actor's process keeps dying.
        GroupMemberError: The last process was a member of a process group.
        StateLostError: The actor's state is lost.
    """
    graceful_exit.hold()
    return _admitted(instance, name)


async def admit_async(instance: object, name: str) -> Answer | None:
    """Do as ``admit``, without blocking the actor's other calls."""
    await graceful_exit.hold_async()
    return _admitted(instance, name)


def _admitted(instance: object, name: str) -> Answer | None:
    may_begin = begin(instance)
    if this_actor() is not instance:
        return None
    if may_begin and _phase() is LifePhase.ENTERED:  # without an `__init__` it begins with its first call
        with _held():
            if opening(instance):
                resume(instance)
    served(instance)
    verdict, task = CallVerdict.GOES_ON, ""
    with harmless("call"):
        task, twice = current_task(), may_run_twice(type(instance), name)
        verdict = _step(CallArrived(call=task, now=time.monotonic(), may_run_twice=twice))
    target = f"{type(instance).__name__}.{name}"
    if verdict is CallVerdict.REFUSED:
        raise hands.error or RuntimeError(f"rayguard has refused {target}")
    if verdict is CallVerdict.CUT_OFF and not ray_is_to_repeat(
        type(instance), name, current_life.state.incarnation.actor_id
    ):
        raise CallLostError(target, _MAKE_IT_AGAIN)
    if verdict is CallVerdict.ANSWERED and hands.earlier is not None:
        answer = hands.earlier.to(task)
        if answer is None:
            raise CallLostError(target, _EFFECT_KEPT)
        return answer
    return None


def _enter(instance: object) -> None:
    _set(replace(current_life.state.life, phase=LifePhase.ENTERING))
    after = replace(current_life.state.life, phase=LifePhase.UNKNOWN)
    try:
        actor = this_actor()
        if not inside_ray_worker() or (actor is not None and mark_of(type(actor)) is None):
            after = replace(after, phase=LifePhase.ABSENT)
        elif actor is instance:  # else a guarded object in a task or in another actor: no life to count
            after = replace(after, phase=LifePhase.ABSENT)  # a failure is not met again by every call
            after, hands.error = life_entry.counted(instance)
    finally:  # last: who comes meanwhile finds the incident
        _set(after)


def _phase() -> LifePhase:
    return current_life.state.life.phase


def _step(event: LifeEvent) -> CallVerdict:
    """Move the life on; say what becomes of the call, or of the beginning."""
    with _held():
        life, verdict = handle(current_life.state.life, event)
        _set(life)
        if not life.asks and hands.earlier is not None:
            over, hands.earlier = hands.earlier, None
            with harmless("kept answer"):
                over.forget()
    return verdict


def _set(life: ActorLife) -> None:
    current_life.state = replace(current_life.state, life=life)
    hands.asks = life.asks


@contextmanager
def _held() -> Iterator[None]:
    """Have the life for this thread: for at most a minute's wait, since a call must not wait for ever."""
    got = hands.lock.acquire(timeout=_PATIENCE_S)
    try:
        yield
    finally:
        if got:
            hands.lock.release()
