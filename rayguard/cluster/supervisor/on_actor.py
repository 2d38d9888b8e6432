"""Actors of a job: their restarts counted against budgets, loops found. A part of ``job_machine``."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from rayguard.cluster.supervisor import events, job_incidents, on_node
from rayguard.cluster.supervisor.restart_budget import Crash, Crashes, RestartPolicy

if TYPE_CHECKING:
    from rayguard.cluster.supervisor.job_state import JobState

# Ray's word for ends that were wished for: a recycled process, `ray.kill(no_restart=False)`.
_WISHED = frozenset({"INTENDED_SYSTEM_EXIT", "INTENDED_USER_EXIT"})
_CRASHED = "SYSTEM_ERROR"
_LOOPS_KEPT = 1_000


def seen(state: JobState, event: events.ActorSeen) -> list[events.Action]:
    """Take one row of the actor table; rows come late, twice, and out of order."""
    known = state.actors.get(event.actor_id)
    if event.state is events.ActorState.DEAD:
        return [] if known is None else _dead(state, event, known)
    if known is None:
        known = _met(state, event)
    elif event.restarts < known.restarts:  # older than what is known
        return []
    actions: list[events.Action] = []
    if event.restarts > known.restarts:
        actions = _restarted(state, event, known)
    alive = event.state is events.ActorState.ALIVE
    state.actors[event.actor_id] = replace(
        event,
        class_name=event.class_name or known.class_name,
        node=(event.node if alive else "") or known.node or event.node,
        worker=(event.worker if alive else "") or known.worker or event.worker,
    )
    if alive:
        actions += on_node.came_back(state, event.actor_id, event.node, event.at)
    return actions


def table_read(state: JobState, event: events.TableRead) -> list[events.Action]:
    """Take the whole table: what a lost push would have said is found by the difference."""
    actions: list[events.Action] = []
    there = {row.actor_id for row in event.actors}
    for row in event.actors:
        actions += seen(state, row)
    for actor_id in [one for one in state.actors if one not in there]:  # Ray forgot it: dead for long
        actions += seen(
            state, events.ActorSeen(actor_id=actor_id, state=events.ActorState.DEAD, at=event.at, wished=True)
        )
    state.dead = sum(row.state is events.ActorState.DEAD for row in event.actors)
    state.table_read = True
    state.restarts_known.clear()
    return actions


def death_reported(state: JobState, event: events.DeathReported) -> list[events.Action]:
    """Count a restart, or the death of an actor for good, now that it is known how its process ended."""
    lately = (one for one in state.lately_dead if one.actor_id == event.actor_id)
    actor = state.actors.get(event.actor_id) or next(lately, None)
    if actor is None or event.exit in _WISHED or on_node.is_leaving(state, actor.node):
        return []
    actions: list[events.Action] = []
    if event.exit == _CRASHED:  # neither an error of the user's code nor memory that it ate
        actions = on_node.died_on(state, actor.node, event.actor_id, event.at)
    if event.actor_id not in state.actors:
        return actions
    crash, budget, loop = Crash(event.at, event.exit), state.policy.budget, state.policy.crash_loop
    if budget is not None:
        state.crashes.add(crash)
    looping = loop is not None and _is_loop(state, event.actor_id, crash, loop)
    spent = budget is not None and budget.stop and state.budget_left <= 0
    if (looping or spent) and event.actor_id not in state.stopping:
        actions += _end_it(state, event, stop=spent or (loop is not None and loop.stop))
    return actions


def _is_loop(state: JobState, actor_id: str, crash: Crash, policy: RestartPolicy) -> bool:
    """Count a crash of one actor; say whether it restarts again and again for the same cause."""
    crashes = state.loops.pop(actor_id, None) or Crashes(most=policy.max_restarts)
    crashes.add(crash)
    state.loops[actor_id] = crashes  # the newest is the last
    while len(state.loops) > _LOOPS_KEPT:
        del state.loops[next(iter(state.loops))]
    return crashes.are_loop(policy.for_actors(1))


def stopped(state: JobState, event: events.Stopped) -> list[events.Action]:
    """Tell of a loop that was ended, or of why it was not; once for each actor."""
    found = state.stopping.pop(event.actor_id, None)
    if found is None:
        return []
    incident = job_incidents.loop_ended(found, event)
    state.loop_incidents[event.actor_id] = event.done
    while len(state.loop_incidents) > _LOOPS_KEPT:
        state.loop_incidents.popitem(last=False)
    state.stories.add(incident)
    return [events.WriteIncident(incident)]


def tick(state: JobState, now: float) -> list[events.Action]:
    """Tell once when the budget is spent, and forget loops that ended by themselves."""
    policy = state.policy.crash_loop
    if policy is not None:
        old = [one for one, crashes in state.loops.items() if now - crashes.last_at >= policy.within_s]
        for actor_id in old:
            del state.loops[actor_id]
    if state.policy.budget is None or state.budget_left > 0:
        state.spent_at = None
        return []
    if state.spent_at is not None:
        return []
    state.spent_at = now
    incident = job_incidents.budget_spent(state, state.policy.budget, now)
    state.stories.add(incident)
    return [events.WriteIncident(incident)]


def _met(state: JobState, event: events.ActorSeen) -> events.ActorSeen:
    """Begin with an actor as it stands; after a restart of ours, what it went through meanwhile is news."""
    known = state.restarts_known.pop(event.actor_id, 0 if state.restored else event.restarts)
    return replace(event, restarts=min(known, event.restarts))


def _restarted(state: JobState, event: events.ActorSeen, known: events.ActorSeen) -> list[events.Action]:
    if on_node.is_leaving(state, known.node):
        on_node.victim(state, known.node, known)
        return []
    worker = event.previous_worker or known.worker
    # Pushes that were lost: each life counts, though how they ended can be asked of the last one only.
    return [events.AskDeath(event.actor_id, worker)] * min(event.restarts - known.restarts, 100)


def _dead(state: JobState, event: events.ActorSeen, known: events.ActorSeen) -> list[events.Action]:
    del state.actors[event.actor_id]
    state.loops.pop(event.actor_id, None)
    state.dead += 1
    state.stories.actor_gone(event.actor_id, event.at)
    if event.wished:
        return on_node.came_back(state, event.actor_id, "", event.at)
    state.lately_dead.append(replace(known, at=event.at))
    if on_node.is_leaving(state, known.node):
        on_node.victim(state, known.node, known, dead=True)
        return on_node.settled(state, known.node, event.at)
    actions = on_node.lost_for_good(state, event.actor_id, event.at)
    return [*actions, events.AskDeath(event.actor_id, event.worker or known.worker)]


def _end_it(state: JobState, event: events.DeathReported, *, stop: bool) -> list[events.Action]:
    if event.actor_id in state.loop_incidents:  # told already, and left alone for a reason
        return []
    # Now and not when it is stopped: by then Ray may have said that it is gone.
    state.stopping[event.actor_id] = job_incidents.crash_loop(state, event)
    if stop:
        return [events.StopActor(event.actor_id)]
    why = "stopping is switched off"
    return stopped(state, events.Stopped(actor_id=event.actor_id, at=event.at, done=False, why=why))
