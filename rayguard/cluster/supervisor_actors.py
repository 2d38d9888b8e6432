"""Actors of a job: their restarts counted against budgets, loops found. A part of ``supervisor_state``."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from rayguard.cluster import supervisor_nodes, supervisor_words
from rayguard.cluster.crash_loop import Restart, is_loop, with_one_more
from rayguard.cluster.job_budget import OnSpent
from rayguard.cluster.job_state import Actor
from rayguard.cluster.supervisor_events import (
    Action,
    ActorSeen,
    ActorState,
    AskDeath,
    DeathTold,
    StopActor,
    Stopped,
    TableRead,
    WriteIncident,
)

if TYPE_CHECKING:
    from rayguard.cluster.job_state import JobState
    from rayguard.cluster.supervisor_events import OfActors

# Ray's word for ends that were wished for: a recycled process, `ray.kill(no_restart=False)`.
_WISHED = frozenset({"INTENDED_SYSTEM_EXIT", "INTENDED_USER_EXIT"})
_CRASHED = "SYSTEM_ERROR"
_LOOPS_KEPT = 1_000


def handle(state: JobState, event: OfActors) -> list[Action]:
    """Move ``state`` on by an event of an actor."""
    match event:
        case ActorSeen():
            return _seen(state, event)
        case DeathTold():
            return _death_told(state, event)
        case TableRead():
            return _table_read(state, event)
        case Stopped():
            return _stopped(state, event)


def _seen(state: JobState, event: ActorSeen) -> list[Action]:
    """Take one row of the actor table; rows come late, twice, and out of order."""
    known = state.actors.get(event.actor_id)
    if event.state is ActorState.DEAD:
        return [] if known is None else _dead(state, event, known)
    if known is None:
        known = _met(state, event)
    elif event.restarts < known.restarts:  # older than what is known
        return []
    actions: list[Action] = []
    if event.restarts > known.restarts:
        actions = _restarted(state, event, known)
    alive = event.state is ActorState.ALIVE
    state.actors[event.actor_id] = replace(
        known,
        state=event.state,
        class_name=event.class_name or known.class_name,
        node=(event.node if alive else "") or known.node or event.node,
        worker=(event.worker if alive else "") or known.worker or event.worker,
        restarts=event.restarts,
    )
    if alive:
        actions += supervisor_nodes.came_back(state, event.actor_id, event.node, event.at)
    return actions


def _table_read(state: JobState, event: TableRead) -> list[Action]:
    """Take the whole table: what a lost push would have said is found by the difference."""
    actions: list[Action] = []
    there = {row.actor_id for row in event.actors}
    for row in event.actors:
        actions += _seen(state, row)
    for actor_id in [one for one in state.actors if one not in there]:  # Ray forgot it: dead for long
        actions += _seen(state, ActorSeen(actor_id=actor_id, state=ActorState.DEAD, at=event.at, wished=True))
    state.dead = sum(row.state is ActorState.DEAD for row in event.actors)
    state.table_read = True
    state.restarts_known.clear()
    return actions


def _death_told(state: JobState, event: DeathTold) -> list[Action]:
    """Count a restart, or the death of an actor for good, now that it is known how its process ended."""
    actor = state.actors.get(event.actor_id) or _lately(state, event.actor_id)
    if actor is None or event.exit in _WISHED or supervisor_nodes.goes(state, actor.node):
        return []
    actions: list[Action] = []
    if event.exit == _CRASHED:  # neither an error of the user's code nor memory that it ate
        actions = supervisor_nodes.died_on(state, actor.node, event.actor_id, event.at)
    if event.actor_id not in state.actors:
        return actions
    if state.policy.budget is not None:
        state.spending.spend(event.at)
    policy = state.policy.crash_loop
    looping = False
    if policy is not None:
        restarts = state.loops.pop(event.actor_id, ())
        new = Restart(event.at, event.exit)
        state.loops[event.actor_id] = restarts = with_one_more(restarts, new, policy)
        looping = is_loop(restarts, policy)
        while len(state.loops) > _LOOPS_KEPT:
            del state.loops[next(iter(state.loops))]
    budget = state.policy.budget
    spent = budget is not None and budget.on_spent is OnSpent.STOP and state.budget_left <= 0
    if (looping or spent) and event.actor_id not in state.stopping:
        actions += _end_it(state, event, stop=spent or (policy is not None and policy.stop))
    return actions


def _stopped(state: JobState, event: Stopped) -> list[Action]:
    """Tell of a loop that was ended, or of why it was not; once for each actor."""
    found = state.stopping.pop(event.actor_id, None)
    if found is None:
        return []
    incident = supervisor_words.loop_ended(found, event)
    state.loop_incidents[event.actor_id] = event.done
    while len(state.loop_incidents) > _LOOPS_KEPT:
        state.loop_incidents.popitem(last=False)
    state.stories.add(incident)
    return [WriteIncident(incident)]


def tick(state: JobState, now: float) -> list[Action]:
    """Tell once when the budget is spent, and forget loops that ended by themselves."""
    policy = state.policy.crash_loop
    if policy is not None:
        old = [one for one, lives in state.loops.items() if now - lives[-1].at >= policy.within_s]
        for actor_id in old:
            del state.loops[actor_id]
    if state.policy.budget is None or state.budget_left > 0:
        state.spent_at = None
        return []
    if state.spent_at is not None:
        return []
    state.spent_at = now
    incident = supervisor_words.budget_spent(state, state.policy.budget, now)
    state.stories.add(incident)
    return [WriteIncident(incident)]


def _met(state: JobState, event: ActorSeen) -> Actor:
    """Begin with an actor as it stands; after a restart of ours, what it went through meanwhile is news."""
    known = state.restarts_known.pop(event.actor_id, 0 if state.restored else event.restarts)
    return Actor(event.state, event.class_name, event.node, event.worker, min(known, event.restarts))


def _restarted(state: JobState, event: ActorSeen, known: Actor) -> list[Action]:
    if supervisor_nodes.goes(state, known.node):
        supervisor_nodes.victim(state, known.node, event.actor_id, known)
        return []
    worker = event.previous_worker or known.worker
    # Pushes that were lost: each life counts, though how they ended can be asked of the last one only.
    return [AskDeath(event.actor_id, worker)] * min(event.restarts - known.restarts, 100)


def _dead(state: JobState, event: ActorSeen, known: Actor) -> list[Action]:
    del state.actors[event.actor_id]
    state.loops.pop(event.actor_id, None)
    state.dead += 1
    state.stories.actor_gone(event.actor_id, event.at)
    if event.wished:
        return supervisor_nodes.came_back(state, event.actor_id, "", event.at)
    state.lately_dead.append((event.at, event.actor_id, known))
    if supervisor_nodes.goes(state, known.node):
        supervisor_nodes.victim(state, known.node, event.actor_id, known, dead=True)
        return supervisor_nodes.settled(state, known.node, event.at)
    actions = supervisor_nodes.lost_for_good(state, event.actor_id, event.at)
    return [*actions, AskDeath(event.actor_id, event.worker or known.worker)]


def _end_it(state: JobState, event: DeathTold, *, stop: bool) -> list[Action]:
    if event.actor_id in state.loop_incidents:  # told already, and left alone for a reason
        return []
    # Now and not when it is stopped: by then Ray may have said that it is gone.
    state.stopping[event.actor_id] = supervisor_words.crash_loop(state, event)
    if stop:
        return [StopActor(event.actor_id)]
    why = "stopping is switched off"
    return _stopped(state, Stopped(actor_id=event.actor_id, at=event.at, done=False, why=why))


def _lately(state: JobState, actor_id: str) -> Actor | None:
    return next((actor for _, one, actor in state.lately_dead if one == actor_id), None)
