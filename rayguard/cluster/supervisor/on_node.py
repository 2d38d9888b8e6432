"""Nodes of a job: lost, told to go, blamed for what happens on them. A part of ``job_machine``."""

from __future__ import annotations

from dataclasses import replace

from rayguard.cluster.supervisor import events, job_incidents
from rayguard.cluster.supervisor.job_state import JobState, Loss
from rayguard.cluster.supervisor.quarantine import NodeHistory, Quarantine, is_fault_of_node, verdict
from rayguard.recovery.incident import Incident, Outcome

JUST_S = 30.0  # an actor that died so shortly before its node was told dead died with it
PLACE_S = 600.0  # in which the actors of a lost node should have found another one
_GONE_KEPT = 1_000
_VICTIMS = 256  # named in one incident


def is_leaving(state: JobState, node: str) -> bool:
    """Say whether what ends on ``node`` now ends because of it."""
    return node in state.gone or node in state.draining


def seen(state: JobState, event: events.NodeSeen) -> list[events.Action]:
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
    actions: list[events.Action] = [events.Readmit(node)] if state.quarantined.pop(node, None) else []
    loss = state.losses.get(node)
    victims = _on(state, node, event.at)
    if loss is None and event.expected and not victims:
        return actions  # a node that nobody used was taken back
    if loss is None:
        incident = job_incidents.node_gone(state, event, address, drained=drained)
        loss = Loss(incident, gone=True, by=event.at + PLACE_S)
        state.losses[node] = loss
    loss.gone, loss.by = True, event.at + PLACE_S
    for actor, dead in victims:
        victim(state, node, actor, dead=dead)
    loss.incident = job_incidents.with_victims(loss, event.why)
    return [*actions, *_wrote(state, loss.incident), *settled(state, node, event.at)]


def draining(state: JobState, event: events.NodesDraining) -> list[events.Action]:
    """Take the list of nodes that are told to go. New ones are told at once: it is no fault of anybody."""
    actions: list[events.Action] = []
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


def victim(state: JobState, node: str, actor: events.ActorSeen, *, dead: bool = False) -> None:
    """Note that an actor lost its process with its node."""
    loss = state.losses.get(node)
    if loss is None:
        return
    if actor.actor_id not in loss.victims and len(loss.victims) < _VICTIMS:
        loss.victims[actor.actor_id] = actor.class_name
    if dead:
        loss.dead += 1
        loss.waiting.discard(actor.actor_id)
    else:
        loss.waiting.add(actor.actor_id)


def came_back(state: JobState, actor_id: str, node: str, at: float) -> list[events.Action]:
    """Note that an actor lives (on ``node``), or that nobody wants it any more."""
    actions: list[events.Action] = []
    for lost in [one for one, loss in state.losses.items() if one != node and actor_id in loss.waiting]:
        state.losses[lost].waiting.discard(actor_id)
        actions += settled(state, lost, at)
    return actions


def lost_for_good(state: JobState, actor_id: str, at: float) -> list[events.Action]:
    """Note that an actor died before it had found another place."""
    actions: list[events.Action] = []
    for lost in [one for one, loss in state.losses.items() if actor_id in loss.waiting]:
        state.losses[lost].waiting.discard(actor_id)
        state.losses[lost].dead += 1
        actions += settled(state, lost, at)
    return actions


def settled(state: JobState, node: str, at: float) -> list[events.Action]:
    """Close the incident of a lost node once none of its actors waits for a place."""
    loss = state.losses.get(node)
    if loss is None or not loss.gone or loss.waiting:
        return []
    note = f"{loss.dead} of {len(loss.victims)} actors did not come back" if loss.dead else ""
    return _close(state, node, at, Outcome.FAILED if loss.dead else Outcome.RECOVERED, note)


def blamed(state: JobState, incident: Incident, now: float) -> list[events.Action]:
    """Note a fault of a node; quarantine the node if that was one too many."""
    if not is_fault_of_node(incident) or incident.node not in state.nodes:
        return []
    history = state.histories.get(incident.node, NodeHistory())
    state.histories[incident.node] = history.with_incident(incident)
    return _judge(state, incident.node, now)


def died_on(state: JobState, node: str, actor_id: str, now: float) -> list[events.Action]:
    """Note an actor's death on a node that seems well; quarantine it if they all die there."""
    if node not in state.nodes:
        return []
    state.histories[node] = state.histories.get(node, NodeHistory()).with_death(actor_id, now)
    return _judge(state, node, now)


def tick(state: JobState, now: float) -> list[events.Action]:
    """Readmit nodes whose time is over; give up waiting for places."""
    actions: list[events.Action] = [one for node in state.draining for one in _notice(state, node, now)]
    for node in [one for one, quarantine in state.quarantined.items() if quarantine.until <= now]:
        del state.quarantined[node]
        state.histories.pop(node, None)  # it begins anew
        actions.append(events.Readmit(node))
    for node in [one for one, loss in state.losses.items() if loss.by <= now]:
        waiting = len(state.losses[node].waiting)
        note = "" if state.losses[node].gone else "it was not taken away"
        note = f"{waiting} actors found no other place within {PLACE_S:.0f} s" if waiting else note
        actions += _close(state, node, now, Outcome.FAILED if waiting else Outcome.RECOVERED, note)
    return actions


def _notice(state: JobState, node: str, at: float) -> list[events.Action]:
    """Open the incident of a node that is told to go, once actors of the job are on it."""
    if node in state.losses or not any(actor.node == node for actor in state.actors.values()):
        return []
    deadline = state.draining[node]
    incident = job_incidents.node_told_to_go(state, node, deadline, at)
    state.losses[node] = Loss(incident, gone=False, by=max(deadline, at) + PLACE_S)
    return _wrote(state, incident)


def _judge(state: JobState, node: str, now: float) -> list[events.Action]:
    policy = state.policy.quarantine
    if policy is None or node in state.quarantined or is_leaving(state, node):
        return []
    alive = {one: state.histories.get(one, NodeHistory()) for one in state.nodes}
    quarantine: Quarantine | None = verdict(node, alive, policy, now)
    if quarantine is None:
        return []
    state.quarantined[node] = quarantine
    incident = job_incidents.node_quarantined(state, node, quarantine, now)
    return [*_wrote(state, incident), events.QuarantineNode(node, quarantine.until, quarantine.why)]


def _on(state: JobState, node: str, at: float) -> list[tuple[events.ActorSeen, bool]]:
    """Return the actors that went with ``node``, and whether for good: Ray may have told of them first."""
    living = [(one, False) for one in state.actors.values() if one.node == node]
    dead = [(one, True) for one in state.lately_dead if one.node == node and at - one.at < JUST_S]
    return [*living, *dead]


def _close(state: JobState, node: str, at: float, outcome: Outcome, note: str) -> list[events.Action]:
    loss: Loss = state.losses.pop(node)
    incident = job_incidents.with_victims(loss, "")
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


def _wrote(state: JobState, incident: Incident) -> list[events.Action]:
    state.stories.add(incident)
    return [events.WriteIncident(incident)]
