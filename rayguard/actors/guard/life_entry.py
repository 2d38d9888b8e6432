"""A guarded actor's life is entered: which one it is, what ended the one before, whether it may go on.

Decided by ``rayguard.recovery.actor_life``; carried out, call by call, by ``rayguard.actors.guard.restarts``.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from rayguard.actors.guard.last_death import incident_of_death, incident_of_last_life
from rayguard.actors.life import current_life, incidents, process_group
from rayguard.actors.life.incarnation import PROCESS_PART, ActorMemory, Incarnation, PastDeath
from rayguard.actors.life.publishing import guards, reap, record, show_if_asked
from rayguard.actors.life.retries import user_asked
from rayguard.actors.mark import Guarding, StateRule, mark_of
from rayguard.errors import GaveUpError, GroupMemberError, StateLostError
from rayguard.faults.diagnosis import Scope
from rayguard.harmless import harmless
from rayguard.recovery.actor_life import OF_A_GROUP, ActorLife, CallVerdict, LifeEntered, Refusal, handle
from rayguard.recovery.incident import Incident, Outcome, attach
from rayguard.recovery.remedy import RECYCLED, Action, Remedy

_RESTART = Remedy(action=Action.RESTART_PROCESS)
_ADVICE = (
    "read `rayguard incidents` and the actor's log for what ends it; when such deaths are to be expected, "
    "raise GuardPolicy(process_budget=...); then create the actor anew"
)
_TAKE_IT = (
    "calls that may run twice are made again (@rayguard.method(idempotent=True)); an actor for which you ask "
    "Ray for restarts (max_restarts) goes on all the same, and that is told"
)


def counted(instance: object) -> tuple[ActorLife, Exception | None]:
    """Find out which life this is, and what ended the last one; the error answers calls of one refused."""
    incarnation = Incarnation.current()
    current_life.state = current_life.LifeState(incarnation, current_life.state.life)
    _show_itself(instance)
    reap()
    _watch_memory(instance)
    mark = mark_of(type(instance)) or Guarding()
    now, budget = time.time(), mark.policy.process_budget
    if incarnation.number == 0:
        return handle(ActorLife(), LifeEntered(number=0, now=now, budget=budget))[0], None
    earlier_lives = ActorMemory(incarnation.actor_id, PROCESS_PART)
    lives_so_far, member = earlier_lives.load(), process_group.was_member(incarnation.actor_id)
    life, verdict = handle(
        ActorLife(),
        LifeEntered(
            number=incarnation.number,
            now=now,
            budget=budget,
            earlier=tuple(float(at) for at in lives_so_far.get("restarts", ())),
            unsaid=mark.watching or mark.state is StateRule.UNSAID,
            recycled=(lives_so_far.get("incident") or {}).get("remedy") == RECYCLED.label,
            of_a_group=member,
            asked=member and user_asked(incarnation.actor_id),
        ),
    )
    name, incident = type(instance).__name__, None
    with harmless("incident"):  # the budget must hold, whatever fails here
        earlier_lives.save({"restarts": list(life.restarts), "incident": None})
        _end_unserved(lives_so_far)
        if mark.watching or mark.state is StateRule.UNSAID:
            _tell_untold(lives_so_far, name, mark)
        incident = incident_of_last_life(lives_so_far, name, mark)
        earlier_lives.save(word_of(life, incident, served=False))
        if verdict is CallVerdict.REFUSED:
            incident = _given_up(incident, life)
        current_life.state = replace(current_life.state, incident=incident)
    return life, None if life.refusal is None else _refusal(name, life, incident)


def state_lost(name: str) -> StateLostError:
    """Return what answers every call of an actor whose last state lacks something."""
    return StateLostError(f"{name}: {current_life.state.life.lost}; {_TAKE_IT}")


def state_refused(error: StateLostError) -> None:
    """Close the incident that led to this life, which cannot have its state; ``error`` tells it, too."""
    with harmless("journal"):
        now = current_life.state
        if now.incident is None:
            return
        incident = replace(now.incident, notes=(*now.incident.notes, str(error)))
        final = _given_up(incident, now.life)
        attach(error, final)
        current_life.state = replace(now, incident=None)
        ActorMemory(now.incarnation.actor_id, PROCESS_PART).save(word_of(now.life, final, served=True))


def word_of(life: ActorLife, incident: Incident, *, served: bool) -> dict[str, object]:
    """Return what the next life is to know of this one, and of the ``incident`` that led to it."""
    told = {"pid": incident.pid, "kind": incident.kind}
    unserved = None if served else incident.to_json()
    return {"restarts": list(life.restarts), "incident": None, "told": told, "unserved": unserved}


def _end_unserved(lives_so_far: dict[str, Any]) -> None:
    """Close the incident that led to the last life, where that has died before it served."""
    if lives_so_far.get("unserved"):
        incident = Incident.from_json(lives_so_far["unserved"])
        told = replace(incident, notes=(*incident.notes, "the life that it led to ended before it served"))
        incidents.record(incidents.closed(told, Outcome.FAILED))


def _tell_untold(lives_so_far: dict[str, Any], name: str, mark: Guarding) -> None:
    """Tell of deaths whose next lives ended before rayguard had arrived in them: Ray began anew each time."""
    told = (lives_so_far.get("told") or {}).get("pid", 0)
    for number, death in PastDeath.untold(told):
        incident = incident_of_death(death, number, name, mark)
        note = "Ray began it anew; what it held is gone. The life that this led to ended before it could tell"
        over = incidents.closed(replace(incident, notes=(*incident.notes, note)), Outcome.STATE_LOST)
        incidents.record(over)


def _given_up(incident: Incident, life: ActorLife) -> Incident:
    """Return the incident as one that is over, and write it."""
    final = replace(incidents.closed(incident, Outcome.FAILED), remedy=Remedy(action=Action.GIVE_UP).label)
    if life.refusal is Refusal.GROUP:
        final = replace(final, scope=Scope.GROUP.value, notes=(*final.notes, OF_A_GROUP))
    incidents.record(final)
    return final


def _refusal(name: str, life: ActorLife, incident: Incident | None) -> Exception:
    """Return what answers every call of an actor that has given up: the whole story."""
    cause = incident.cause if incident else "its process keeps dying"
    error: Exception
    if life.refusal is Refusal.GROUP:
        error = GroupMemberError(name, cause)
    else:
        tried = (_RESTART.label,) * len(life.restarts)
        error = GaveUpError(name, cause, tried, (incident.advice if incident else "") or _ADVICE)
    if incident is not None:
        attach(error, incident)
    return error


def _show_itself(instance: object) -> None:
    with harmless("recorder"):
        mark = mark_of(type(instance)) or Guarding()
        if not mark.watching:
            guards()
        show_if_asked(current_life.state.incarnation, type(instance).__name__)
        if mark.policy.flight_recorder:
            record(current_life.state.incarnation, type(instance).__name__)


def _watch_memory(instance: object) -> None:
    with harmless("memory watch"):
        mark = mark_of(type(instance)) or Guarding()
        if mark.policy.memory is not None:
            from rayguard.actors.memory import memory_guard  # noqa: PLC0415 - costs 0.1 s, and drivers have no use for it

            memory_guard.watch(instance, mark)
