"""The incidents that the supervisor of a job writes itself: of nodes, loops, and the spent budget.

The id of each follows from what it is about, so that a supervisor that is started again, or a second one,
writes of the same thing under the same id.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from rayguard.cluster.supervisor.story_links import BUDGET_SPENT, CRASH_LOOP
from rayguard.faults.diagnosis import Kind, Scope
from rayguard.recovery.incident import Incident, Outcome

if TYPE_CHECKING:
    from rayguard.cluster.supervisor.events import DeathReported, NodeSeen, Stopped
    from rayguard.cluster.supervisor.job_state import JobState, Loss
    from rayguard.cluster.supervisor.quarantine import Quarantine
    from rayguard.cluster.supervisor.restart_budget import RestartPolicy

QUARANTINED = "cluster.node_quarantined"
_OOM = "NODE_OUT_OF_MEMORY"
_SHORT = 8  # of a node's id, for people


def node_gone(state: JobState, event: NodeSeen, address: str, *, drained: bool) -> Incident:
    """Return the incident of a node that is gone: lost, or taken away in order."""
    preempted = event.preempted or event.expected or drained
    how = "ended in order" if preempted else "is gone without a word"
    parts = ("gone", f"{event.at:.0f}") if preempted else ("gone",)
    incident = _of_node(state, event.node, address, *parts)
    return replace(
        incident,
        kind=Kind.PREEMPTED.value if preempted else Kind.NODE_DIED.value,
        signature="ray.preempted" if preempted else "ray.node_died",
        cause=f"{incident.target} {how}" + (f": {event.why}" if event.why else ""),
        evidence=(f"Ray's control process: {event.why}",) if event.why else (),
        advice=(
            "start enough nodes; give actors max_restarts, so that Ray places them elsewhere"
            if preempted
            else "look at the node (power, network, dmesg, its raylet.err); Ray places its actors elsewhere"
        ),
        detected_at=event.at,
    )


def node_told_to_go(state: JobState, node: str, deadline: float, at: float) -> Incident:
    """Return the incident of a node that has notice: spot capacity taken back, maintenance, scale-down."""
    left = f" in {deadline - at:.0f} s" if deadline > at else ""
    incident = _of_node(state, node, state.nodes.get(node, ""), "drain", f"{deadline:.0f}")
    return replace(
        incident,
        kind=Kind.PREEMPTED.value,
        signature="ray.preempted",
        cause=f"{incident.target} was told to go{left} (drained)",
        evidence=("Ray's control process lists it as draining",),
        advice="save what its actors hold; their next lives are placed elsewhere",
        detected_at=at,
    )


def with_victims(loss: Loss, why: str) -> Incident:
    """Return the incident of a lost node with the actors that it took along."""
    named = tuple(f"actor {one} ({name or '?'})" for one, name in loss.victims.items())
    line = f"Ray's control process: {why}" if why else ""
    evidence = loss.incident.evidence
    if line and line not in evidence:
        evidence = (*evidence, line)
    return replace(loss.incident, consequences=named, evidence=evidence)


def node_quarantined(state: JobState, node: str, quarantine: Quarantine, at: float) -> Incident:
    """Return the (closed) incident of a node that gets no more work."""
    last = [one for one in state.stories.incidents() if one.node == node and one.scope == Scope.NODE.value]
    incident = _of_node(state, node, state.nodes.get(node, ""), "quarantine", f"{quarantine.until:.0f}")
    return replace(
        incident,
        kind=last[-1].kind if last else Kind.ACTOR_DIED.value,
        signature=QUARANTINED,
        cause=f"{incident.target} is in quarantine: {quarantine.why}",
        confidence=0.9,
        evidence=(last[-1].cause,) if last else (),
        advice="look at the node (dmesg, nvidia-smi, df) and drain it if it is broken; "
        "new engines of pools go elsewhere meanwhile",
        remedy="quarantine",
        outcome=Outcome.QUARANTINED,
        detected_at=at,
        closed_at=at,
    )


def crash_loop(state: JobState, event: DeathReported) -> Incident:
    """Return the incident of an actor that restarts for ever, still open (``loop_ended``), with its cause."""
    actor_id = event.actor_id
    actor = state.actors.get(actor_id)
    crashes = tuple(state.loops.get(actor_id, ()))
    before = [one for one in state.stories.of_actor(actor_id) if one.signature != CRASH_LOOP]
    last = before[-1] if before else None
    cause = why_it_ends(event.exit, event.detail, last.cause if last else "")
    took = f" in {event.at - crashes[0].at:.0f} s" if crashes else ""
    name = actor.class_name if actor and actor.class_name else "actor"
    fallback = Kind.HOST_OOM if event.exit == _OOM else Kind.ACTOR_DIED
    return Incident(
        id=_id(state.job_id, "crash_loop", actor_id),
        kind=last.kind if last else fallback.value,
        scope=Scope.PROCESS.value,
        cause=f"{name} restarted {max(1, len(crashes))} times{took} for the same cause: {cause}",
        signature=CRASH_LOOP,
        confidence=0.95,
        evidence=tuple(f"restarted after {one.exit or 'an end that nobody knows'}" for one in crashes[-3:]),
        advice=(last.advice if last else "")
        or "repair what ends it and create it anew; crash_loop.restarts of the supervisor allows more",
        target=name,
        actor_id=actor_id,
        job_id=state.job_id,
        node=actor.node if actor else "",
        incarnation=actor.restarts if actor else 0,
        detected_at=event.at,
    )


def why_it_ends(exit_type: str, detail: str, known: str) -> str:
    """Say for what an actor restarts: what its last incident found, else Ray's own word."""
    if known:
        return known
    facts = detail.partition(" Some common causes include")[0].strip()  # guesses are no evidence
    return ": ".join(part for part in (exit_type, facts) if part) or "nobody knows how its process ended"


def loop_ended(incident: Incident, event: Stopped) -> Incident:
    """Return the incident of a loop, closed: the actor was stopped, or left alone for a reason."""
    return replace(
        incident,
        cause=incident.cause if event.done else f"{incident.cause}; it was left running: {event.why}",
        remedy="give_up" if event.done else "",
        outcome=Outcome.FAILED,
        closed_at=event.at,
    )


def budget_spent(state: JobState, policy: RestartPolicy, at: float) -> Incident:
    """Return the (closed) incident of a job that restarts too much."""
    allowed = policy.for_actors(len(state.actors)).max_restarts
    classes = ", ".join(f"{name} {count}x" for name, count in _loudest(state))
    stories = Counter(story.cause for story in state.stories.all()[-200:]).most_common(3)
    return replace(
        _of_job(state, at, "budget", f"{at:.0f}"),
        kind=Kind.ACTOR_DIED.value,
        cause=f"{allowed} restarts within {policy.within_s / 60:.0f} min: the job's restart budget is spent"
        + (f" ({classes})" if classes else ""),
        signature=BUDGET_SPENT,
        evidence=tuple(f"{count} x {cause}" for cause, count in stories),
        advice="read `rayguard incidents` for what ends its actors; "
        "when so many restarts are to be expected, raise the budget (supervisor: budget.at_least)",
        outcome=Outcome.FAILED,
    )


def last_line(state: JobState) -> str:
    """Return what the log says of a job that is over; '' where nothing had happened to it.

    For the log alone: the end of a job is no fault, and neither the journal nor a metric counts it.
    """
    stories = state.stories.all()
    if not stories and not state.totals:
        return ""
    kinds = ", ".join(f"{kind} x{count}" for (kind, _), count in sorted(state.totals.items()))
    still = sum(story.open for story in stories)
    return (
        f"job {state.job_id} ended after {state.clock.wall_s:.0f} s "
        f"with {state.totals.total()} stories ({kinds}), {still} of them open; "
        f"interrupted for {state.clock.interrupted_s:.0f} s"
    )


def _of_job(state: JobState, at: float, *parts: str) -> Incident:
    """Return the beginning of a closed incident of the whole job."""
    incident = _of(state, Scope.JOB, f"job {state.job_id}", *parts)
    return replace(incident, detected_at=at, closed_at=at)


def _of_node(state: JobState, node: str, address: str, *parts: str) -> Incident:
    """Return the beginning of an incident of a node."""
    short = node[:_SHORT]
    target = f"node {address} ({short})" if address else f"node {short}"
    return replace(_of(state, Scope.NODE, target, node, *parts), node=node)


def _of(state: JobState, scope: Scope, target: str, *parts: str) -> Incident:
    return Incident(
        id=_id(state.job_id, *parts),
        kind=Kind.UNKNOWN.value,
        scope=scope.value,
        cause="",
        confidence=1.0,
        target=target,
        job_id=state.job_id,
    )


def _id(*parts: str) -> str:
    return hashlib.sha256(" ".join(parts).encode()).hexdigest()[:12]


def _loudest(state: JobState) -> list[tuple[str, int]]:
    """Return the classes whose actors restarted most lately, with how often."""
    counted: Counter[str] = Counter()
    for actor_id, crashes in state.loops.items():
        actor = state.actors.get(actor_id)
        counted[actor.class_name if actor else "?"] += len(crashes)
    return counted.most_common(3)
