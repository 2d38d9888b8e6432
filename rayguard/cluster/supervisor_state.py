"""What follows from each event in the life of a job: ``handle(state, event)``.

No Ray, clock or file in here. The state (``job_state``) is moved on in place: a copy of a thousand actors at
each event would make an event dearer the more actors there are. What belongs to actors is
``supervisor_actors``, to nodes ``supervisor_nodes``; what is written of it, ``supervisor_words``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rayguard.cluster import supervisor_actors, supervisor_nodes, supervisor_words
from rayguard.cluster.story_links import of_node
from rayguard.cluster.supervisor_events import (
    KINDS,
    Action,
    ActorSeen,
    DeathTold,
    Event,
    JobOver,
    Leave,
    NodesDraining,
    NodeSeen,
    Stopped,
    TableRead,
    Tick,
    Told,
)

if TYPE_CHECKING:
    from rayguard.cluster.job_state import JobState


def handle(state: JobState, event: Event) -> list[Action]:
    """Move ``state`` on by ``event``; return what is to be done."""
    state.events[KINDS[type(event)]] += 1
    match event:  # mypy rejects an unhandled event
        case ActorSeen() | DeathTold() | TableRead() | Stopped():
            return supervisor_actors.handle(state, event)
        case NodeSeen() | NodesDraining():
            return supervisor_nodes.handle(state, event)
        case Told():
            return _told(state, event)
        case Tick():
            return _tick(state, event)
        case JobOver():
            return _over(state, event)


def _told(state: JobState, event: Told) -> list[Action]:
    actions: list[Action] = []
    for incident in event.incidents:
        actions += supervisor_nodes.blamed(state, incident, event.at)
        if incident.job_id == state.job_id or (not incident.job_id and of_node(incident)):
            state.stories.add(incident)
    return actions


def _tick(state: JobState, event: Tick) -> list[Action]:
    state.agents = event.agents
    state.clock = state.clock.at(event.at, state.stories.spans())
    state.count_settled()
    return [*supervisor_actors.tick(state, event.at), *supervisor_nodes.tick(state, event.at)]


def _over(state: JobState, event: JobOver) -> list[Action]:
    if state.over:
        return []
    state.over = True
    state.clock = state.clock.at(event.at, state.stories.spans())
    state.count_settled(all_of_them=True)
    return [Leave(supervisor_words.job_ended(state, event.at))]
