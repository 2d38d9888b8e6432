"""Nodes of a job: lost, told to go, blamed for what happens on them. A part of ``supervisor_state``."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from rayguard.cluster import supervisor_words
from rayguard.cluster.job_state import Loss
from rayguard.cluster.quarantine import NodeHistory, Quarantine, is_fault_of_node, verdict
from rayguard.cluster.supervisor_events import Action, NodesDraining, NodeSeen, Readmit, Shun, WriteIncident
from rayguard.recovery.incident import Outcome

if TYPE_CHECKING:
    from rayguard.cluster.job_state import Actor, JobState
    from rayguard.cluster.supervisor_events import OfNodes
    from rayguard.recovery.incident import Incident

JUST_S = 30.0  # an actor that died so shortly before its node was told dead died with it
PLACE_S = 600.0  # in which the actors of a lost node should have found another one
_GONE_KEPT = 1_000
_VICTIMS = 256  # named in one incident


def goes(state: JobState, node: str) -> bool:
    """Say whether what ends on ``node`` now ends because of it."""
    return node in state.gone or node in state.draining


def handle(state: JobState, event: OfNodes) -> list[Action]:
    """Move ``state`` on by an event of a node."""
    match event:
        case NodeSeen():
            return _seen(state, event)
        case NodesDraining():
            return _draining(state, event)


def _seen(state: JobState, event: NodeSeen) -> list[Action]:
    """Take a node that joined or is gone."""
    node = event.node
    if event.alive:
        state.nodes.setdefault(node, event.address)
        state.gone.pop(node, None)
        return []
    if node in state.gone or (node not in state.nodes and event.ended_at <= state.known_until):
        return []  # it was dead before anybody looked
    address = state.nodes.pop(node, event.address)
    state.gone[node] = event.at
    while len(state.gone) > _GONE_KEPT:
        state.gone.popitem(last=False)
    state.histories.pop(node, None)
    drained = state.draining.pop(node, None) is not None
    actions: list[Action] = [Readmit(node)] if state.shunned.pop(node, None) else []
    loss = state.losses.get(node)
    victims = _on(state, node, event.at)
    if loss is None and event.expected and not victims:
        return actions  # a node that nobody used was taken back
    if loss is None:
        incident = supervisor_words.node_gone(state, event, address, drained=drained)
        loss = Loss(incident, gone=True, by=event.at + PLACE_S)
        state.losses[node] = loss
    loss.gone, loss.by = True, event.at + PLACE_S
    for actor_id, actor, dead in victims:
        victim(state, node, actor_id, actor, dead=dead)
    loss.incident = supervisor_words.with_victims(loss, event.why)
    return [*actions, *_wrote(state, loss.incident), *settled(state, node, event.at)]


def _draining(state: JobState, event: NodesDraining) -> list[Action]:
    """Take the list of nodes that are told to go. New ones are told at once: it is no fault of anybody."""
    actions: list[Action] = []
    for node, deadline in event.deadlines.items():
        if node in state.draining or node not in state.nodes:
            continue
        state.draining[node] = deadline
        actions += _notice(state, node, event.at)
    for node in [one for one in state.draining if one not in event.deadlines]:
        del state.draining[node]
        if node in state.losses and not state.losses[node].gone:  # Ray may say in a moment that it is gone
            state.losses[node].by = event.at + JUST_S
    return actions


def victim(state: JobState, node: str, actor_id: str, actor: Actor, *, dead: bool = False) -> None:
    """Note that an actor lost its process with its node."""
    loss = state.losses.get(node)
    if loss is None:
        return
    if actor_id not in loss.victims and len(loss.victims) < _VICTIMS:
        loss.victims[actor_id] = actor.class_name
    if dead:
        loss.dead += 1
        loss.waiting.discard(actor_id)
    else:
        loss.waiting.add(actor_id)


def came_back(state: JobState, actor_id: str, node: str, at: float) -> list[Action]:
    """Note that an actor lives (on ``node``), or that nobody wants it any more."""
    actions: list[Action] = []
    for lost in [one for one, loss in state.losses.items() if one != node and actor_id in loss.waiting]:
        state.losses[lost].waiting.discard(actor_id)
        actions += settled(state, lost, at)
    return actions


def lost_for_good(state: JobState, actor_id: str, at: float) -> list[Action]:
    """Note that an actor died before it had found another place."""
    actions: list[Action] = []
    for lost in [one for one, loss in state.losses.items() if actor_id in loss.waiting]:
        state.losses[lost].waiting.discard(actor_id)
        state.losses[lost].dead += 1
        actions += settled(state, lost, at)
    return actions


def settled(state: JobState, node: str, at: float) -> list[Action]:
    """Close the incident of a lost node once none of its actors waits for a place."""
    loss = state.losses.get(node)
    if loss is None or not loss.gone or loss.waiting:
        return []
    if not loss.dead:
        return _close(state, node, at, Outcome.RECOVERED, "")
    of = len(loss.victims)
    return _close(state, node, at, Outcome.FAILED, f"{loss.dead} of {of} actors did not come back")


def blamed(state: JobState, incident: Incident, now: float) -> list[Action]:
    """Note a fault of a node; shun the node if that was one too many."""
    if not is_fault_of_node(incident) or incident.node not in state.nodes:
        return []
    history = state.histories.get(incident.node, NodeHistory())
    state.histories[incident.node] = history.with_incident(incident)
    return _judge(state, incident.node, now)


def died_on(state: JobState, node: str, actor_id: str, now: float) -> list[Action]:
    """Note an actor's death on a node that seems well; shun the node if they all die there."""
    if node not in state.nodes:
        return []
    state.histories[node] = state.histories.get(node, NodeHistory()).with_death(actor_id, now)
    return _judge(state, node, now)


def tick(state: JobState, now: float) -> list[Action]:
    """Readmit nodes whose time is over; give up waiting for places."""
    actions: list[Action] = [one for node in state.draining for one in _notice(state, node, now)]
    for node in [one for one, quarantine in state.shunned.items() if quarantine.until <= now]:
        del state.shunned[node]
        state.histories.pop(node, None)  # it begins anew
        actions.append(Readmit(node))
    for node in [one for one, loss in state.losses.items() if loss.by <= now]:
        waiting = len(state.losses[node].waiting)
        said = "" if state.losses[node].gone else "it was not taken away"
        said = f"{waiting} actors found no other place within {PLACE_S:.0f} s" if waiting else said
        actions += _close(state, node, now, Outcome.FAILED if waiting else Outcome.RECOVERED, said)
    return actions


def _notice(state: JobState, node: str, at: float) -> list[Action]:
    """Open the incident of a node that is told to go, once actors of the job are on it."""
    if node in state.losses or not any(actor.node == node for actor in state.actors.values()):
        return []
    deadline = state.draining[node]
    incident = supervisor_words.node_told_to_go(state, node, deadline, at)
    state.losses[node] = Loss(incident, gone=False, by=max(deadline, at) + PLACE_S)
    return _wrote(state, incident)


def _judge(state: JobState, node: str, now: float) -> list[Action]:
    policy = state.policy.quarantine
    if policy is None or node in state.shunned or goes(state, node):
        return []
    alive = {one: state.histories.get(one, NodeHistory()) for one in state.nodes}
    quarantine: Quarantine | None = verdict(node, alive, policy, now)
    if quarantine is None:
        return []
    state.shunned[node] = quarantine
    incident = supervisor_words.node_shunned(state, node, quarantine, now)
    return [*_wrote(state, incident), Shun(node, quarantine.until, quarantine.why)]


def _on(state: JobState, node: str, at: float) -> list[tuple[str, Actor, bool]]:
    """Return the actors that went with ``node``, and whether for good: Ray may have told of them first."""
    living = [(one, actor, False) for one, actor in state.actors.items() if actor.node == node]
    dead = [
        (one, actor, True)
        for when, one, actor in state.lately_dead
        if actor.node == node and at - when < JUST_S
    ]
    return [*living, *dead]


def _close(state: JobState, node: str, at: float, outcome: Outcome, note: str) -> list[Action]:
    loss: Loss = state.losses.pop(node)
    incident = supervisor_words.with_victims(loss, "")
    return _wrote(
        state,
        replace(
            incident,
            outcome=outcome,
            closed_at=at,
            recover_s=max(0.0, at - incident.detected_at) if outcome is Outcome.RECOVERED else None,
            remedy="restart_process" if loss.victims else incident.remedy,
            notes=(*incident.notes, note) if note else incident.notes,
        ),
    )


def _wrote(state: JobState, incident: Incident) -> list[Action]:
    state.stories.add(incident)
    return [WriteIncident(incident)]
