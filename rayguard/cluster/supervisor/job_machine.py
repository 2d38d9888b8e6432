"""What follows from each event in the life of a job: ``handle(state, event)``.

No Ray, clock or file in here. The state (``job_state``) is moved on in place: a copy of a thousand actors at
each event would make an event dearer the more actors there are. What belongs to actors is
``on_actor``, to nodes ``on_node``; what is written of it, ``job_incidents``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rayguard.cluster.supervisor import events, job_incidents, on_actor, on_node
from rayguard.cluster.supervisor.story_links import of_node

if TYPE_CHECKING:
    from rayguard.cluster.supervisor.job_state import JobState


def handle(state: JobState, event: events.Event) -> list[events.Action]:  # noqa: C901, PLR0911 - one line each
    """Move ``state`` on by ``event``; return what is to be done."""
    state.events[events.KINDS[type(event)]] += 1
    match event:  # mypy rejects an unhandled event
        case events.ActorSeen():
            return on_actor.seen(state, event)
        case events.DeathReported():
            return on_actor.death_reported(state, event)
        case events.TableRead():
            return on_actor.table_read(state, event)
        case events.Stopped():
            return on_actor.stopped(state, event)
        case events.NodeSeen():
            return on_node.seen(state, event)
        case events.NodesDraining():
            return on_node.draining(state, event)
        case events.JournalRecords():
            return _records(state, event)
        case events.Tick():
            return _tick(state, event)
        case events.JobOver():
            return _over(state, event)


def _records(state: JobState, event: events.JournalRecords) -> list[events.Action]:
    actions: list[events.Action] = []
    for incident in event.incidents:
        actions += on_node.blamed(state, incident, event.at)
        if incident.job_id == state.job_id or (not incident.job_id and of_node(incident)):
            state.stories.add(incident)
    return actions


def _tick(state: JobState, event: events.Tick) -> list[events.Action]:
    state.agents = event.agents
    state.clock = state.clock.at(event.at, state.stories.spans())
    state.count_settled()
    return [*on_actor.tick(state, event.at), *on_node.tick(state, event.at)]


def _over(state: JobState, event: events.JobOver) -> list[events.Action]:
    if state.over:
        return []
    state.over = True
    state.clock = state.clock.at(event.at, state.stories.spans())
    state.count_settled(all_of_them=True)
    last = job_incidents.last_line(state)
    return [events.Log(last)] if last else []
