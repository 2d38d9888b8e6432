"""Process restarts of a guarded actor: noticed, counted across lives, bounded, and caused.

Which life this is, and the memory of earlier ones, is ``rayguard.actors.incarnation``; when a process must
be ended is decided elsewhere; how that is done, ``rayguard.actors.ending``.
"""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rayguard.actors import kept, records, standing
from rayguard.actors.incarnation import (
    PROCESS_PART,
    ActorMemory,
    Incarnation,
    PastDeath,
    inside_ray_worker,
    this_actor,
)
from rayguard.actors.last_answer import Answer, LastAnswers, present_task
from rayguard.actors.mark import Guarding, mark_of
from rayguard.actors.postmortem import Postmortem
from rayguard.actors.presence import last_page, reap, record, show_if_asked
from rayguard.errors import GaveUpError, StateLostError
from rayguard.faults.diagnosis import Kind, Scope
from rayguard.faults.fault import Fault, ProcessExit, Role
from rayguard.recovery.harmless import harmless
from rayguard.recovery.incident import Incident, Outcome, attach
from rayguard.recovery.remedy import RECYCLED, Action, Remedy

if TYPE_CHECKING:
    from collections.abc import Callable

    from rayguard.faults.diagnosis import Diagnosis

_GONE = "exit code unknown"  # what a verdict quotes of an exit that nobody can explain
_RESTART = Remedy(action=Action.RESTART_PROCESS)
_BY_RAY = Remedy(
    action=Action.RESTART_PROCESS, reason="only watched: Ray started it again, as it was told to"
)
_ADVICE = (
    "read `rayguard incidents` and the actor's log for what ends it; when such deaths are to be expected, "
    "raise GuardPolicy(process_budget=...); then create the actor anew"
)


def begin(instance: object) -> bool:
    """Enter the life of ``instance``; say whether its ``__init__`` may run. Whoever comes meanwhile waits.

    False when the restart budget is spent: what ended the lives before may well be in ``__init__`` itself.
    """
    global _entering  # noqa: PLW0603 - see `opening`
    if gate is _open and _entering != threading.get_ident():
        with harmless("begin"), _lock:
            if gate is _open:
                _entering = threading.get_ident()
                try:
                    _enter(instance)
                finally:
                    _entering = 0
    return gate is not _refuse or this_actor() is not instance


def opening(instance: object) -> bool:
    """Say, once, that ``instance`` is this process's actor and its outermost ``__init__`` begins here."""
    global _opened  # noqa: PLW0603 - one actor lives in a process, and its calls must find this at once
    if _opened or this_actor() is not instance:
        return False
    _opened = True
    return True


def resume(instance: object) -> None:
    """Give a recycled actor the state that its last process kept; after ``__init__``, before any call.

    Raises:
        StateLostError: It cannot be had: the actor must not go on as if it were new.
    """
    global gate  # noqa: PLW0603 - see `opening`
    if standing.present.incarnation.number > 0:
        kept.resume(instance, standing.present.incarnation)
        with harmless("kept answer"):
            known = LastAnswers.of(standing.present.incarnation)
            if known is not None:
                gate = _Repeated(instance, known)


def served(instance: object) -> None:
    """Close the incident that led to this life: the actor, if ``instance`` is it, works again."""
    incident = standing.present.incident
    if incident is not None and gate is not _refuse and this_actor() is instance:
        standing.present = replace(standing.present, incident=None)
        with harmless("journal"):
            records.record(records.closed(incident, Outcome.RECOVERED, served=True))


def _open(instance: object) -> None:
    """Be the gate until the life has begun; for an actor without ``__init__`` it begins here."""
    global gate  # noqa: PLW0603 - see `opening`
    if not begin(instance):
        _refuse(instance)
    if opening(instance):
        try:
            resume(instance)
        except StateLostError as error:
            gate = _Lost(instance, error)
            raise
    served(instance)


class _Repeated:
    """The gate while Ray may repeat a call that the last process had answered: it is not made again."""

    def __init__(self, instance: object, known: LastAnswers) -> None:
        self._instance, self._known = instance, known

    def __call__(self, instance: object) -> Answer | None:
        global gate  # noqa: PLW0603 - see `opening`
        if instance is not self._instance:
            return None
        with harmless("kept answer"):
            answer = self._known.to(present_task())
            if self._known.over:
                gate = None
                self._known.forget()
            return answer
        return None


class _Lost:
    """The gate of an actor whose state is lost: no call may find it as if it were new."""

    def __init__(self, instance: object, error: StateLostError) -> None:
        self._instance, self._error = instance, error

    def __call__(self, instance: object) -> None:
        if instance is self._instance:
            raise self._error


def _refuse(instance: object) -> None:
    """Be the gate of an actor that has given up: every call is answered at once, by the whole story."""
    if this_actor() is not instance:
        return
    incident = standing.present.incident
    cause = incident.cause if incident else "its process keeps dying"
    tried = (_RESTART.label,) * len(standing.present.restarts)
    advice = (incident.advice if incident else "") or _ADVICE
    error = GaveUpError(type(instance).__name__, cause, tried, advice)
    if incident is not None:
        attach(error, incident)
    raise error


def _enter(instance: object) -> None:
    global gate  # noqa: PLW0603 - see `opening`
    actor = this_actor()
    if not inside_ray_worker() or (actor is not None and mark_of(type(actor)) is None):
        gate = None  # no guarded actor will ever live here
    if actor is not instance:
        return  # a guarded object in a task or in another actor: no life to count
    allowed = True
    try:
        allowed = _counted(instance)
    finally:  # last: who comes meanwhile finds the incident; and a failure is not met again by every call
        gate = None if allowed else _refuse


def _counted(instance: object) -> bool:
    """Find out which life this is and what ended the last one; say whether the budget allows it."""
    incarnation = Incarnation.current()
    standing.present = standing.Standing(incarnation)
    _show_itself(instance)
    reap()
    _watch_memory(instance)
    if incarnation.number == 0:
        return True
    mark = mark_of(type(instance)) or Guarding()
    earlier_lives = ActorMemory(incarnation.actor_id, PROCESS_PART)
    word = earlier_lives.load()
    earlier = tuple(float(at) for at in word.get("restarts", ()))
    now = time.time()
    recent = mark.policy.process_budget.recent(earlier, now)
    recycled = (word.get("incident") or {}).get("remedy") == RECYCLED.label  # has a budget of its own
    allowed = recycled or mark.watching or mark.policy.process_budget.allows(earlier, now)
    restarts = (*recent, now) if allowed and not recycled else recent
    standing.present = replace(standing.present, restarts=restarts)
    with harmless("incident"):  # the budget must hold, whatever fails here
        known = {"restarts": list(restarts), "incident": None}
        earlier_lives.save(known)
        incident = _incident(word, type(instance).__name__, mark)
        earlier_lives.save({**known, "told": {"pid": incident.pid, "kind": incident.kind}})
        standing.present = replace(standing.present, incident=incident if allowed else _given_up(incident))
    return allowed


def _show_itself(instance: object) -> None:
    with harmless("recorder"):
        mark = mark_of(type(instance)) or Guarding()
        show_if_asked(standing.present.incarnation, type(instance).__name__)
        if mark.policy.flight_recorder:
            record(standing.present.incarnation, type(instance).__name__)


def _watch_memory(instance: object) -> None:
    with harmless("memory watch"):
        mark = mark_of(type(instance)) or Guarding()
        if mark.policy.memory is not None:
            from rayguard.actors import memory  # noqa: PLC0415 - costs 0.1 s, and drivers have no use for it

            memory.watch(instance, mark)


def _incident(word: dict[str, Any], target: str, mark: Guarding) -> Incident:
    """Return the incident that ended the last life: the one it left word of, else what Ray knows."""
    # What ran in its engine is known to nobody: the count died with the process.
    lost = None if mark.role is Role.ROLLOUT else 0
    life = standing.present.incarnation
    actor_id = life.actor_id
    if word.get("incident"):
        told = replace(Incident.from_json(word["incident"]), tokens_lost=lost)
        return Postmortem.of_word(told.pid, actor_id).noted_on(told)
    death = PastDeath.before_this() or PastDeath(0, time.time(), "Ray no longer knows how it ended")
    exits = (ProcessExit(role=mark.role, pid=death.pid, exitcode=death.exitcode, at=death.at),)
    found = Postmortem.of(death, actor_id)
    fault = Fault(role=mark.role, exits=exits, log=(death.how, *found.log), at=death.at)
    diagnosis = found.judged(_of_a_process(records.diagnosed(fault), death), death)
    remedy = _BY_RAY if mark.watching else _RESTART
    incident = records.opened(
        fault, diagnosis, remedy, target=target, incarnation=standing.present.incarnation
    )
    with harmless("status"):
        incident = replace(incident, notes=(*incident.notes, *last_page(death.pid, death.at)))
    incident = found.noted_on(incident)
    number, node = (
        standing.present.incarnation.number - 1,
        death.node_id or incident.node,
    )  # perhaps another one
    return replace(incident, pid=death.pid, node=node, incarnation=number, tokens_lost=lost)


def _of_a_process(diagnosis: Diagnosis, death: PastDeath) -> Diagnosis:
    """Return the verdict on a death; where it knows only that the process is gone, with Ray's word of it."""
    if diagnosis.kind is not Kind.UNKNOWN and (death.exitcode is not None or _GONE not in diagnosis.cause):
        return diagnosis
    how = "died without a word: by SIGKILL (also of the kernel, out of memory) or os._exit"
    if death.exitcode is not None:
        how = f"ended with exit code {death.exitcode}"
    cause = f"the actor's process {death.pid} {how}; {death.how}"
    return replace(diagnosis, kind=Kind.ACTOR_DIED, scope=Scope.PROCESS, cause=cause, evidence=(death.how,))


def _given_up(incident: Incident) -> Incident:
    final = replace(records.closed(incident, Outcome.FAILED), remedy=Remedy(action=Action.GIVE_UP).label)
    records.record(final)
    return final


# Guarded calls pass it when it is not None: until the life has begun, and for ever once it is given up.
gate: Callable[[object], Answer | None] | None = _open
_lock = threading.Lock()
_entering = 0  # the thread that enters the life now: what it calls on its way must not wait for itself
_opened = False
