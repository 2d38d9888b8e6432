"""The incident of a death that nobody else tells: the facts gathered, diagnosed, written.

Whether it is to be told is decided in ``death_verdict``; who killed the process in
``rayguard.process.death_cause.killer``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from rayguard.actors.life import incidents
from rayguard.actors.life.postmortem import Postmortem
from rayguard.cluster.agent.death_verdict import Death, diagnosis_of, outcome_of
from rayguard.faults.fault import ExceptionFact, Fault, ProcessExit, Role
from rayguard.faults.printed.traceback import exceptions_in
from rayguard.harmless import harmless
from rayguard.process.death_cause.evidence import gather, last_lines
from rayguard.process.death_cause.killer import CauseOfDeath, who_killed
from rayguard.process.flight.recording import MemoryPoint, Recording
from rayguard.recovery.incident import Incident
from rayguard.recovery.remedy import Action

if TYPE_CHECKING:
    from rayguard.ray_internals.cluster_state import ClusterOfAgent

_STDERR = 5
_LINE_CHARS = 300
_MARKS = (":job_id:", ":actor_name:", ":task_name:")  # lines that Ray writes into each worker's files


def tell(cluster: ClusterOfAgent, death: Death) -> Incident:
    """Write the incident of ``death`` and return it."""
    actor = death.actor
    stderr = cluster.stderr_of(death.word.worker_id, death.pid) if death.word is not None else ""
    found = Postmortem.of_word(death.pid, death.actor_id)
    seen = found.recording or _recording_of_node(death, stderr)
    verdict = _verdict(death, seen, recorded=found.recording is not None)
    fault = _fault(death, verdict)
    grew = found.recording.sentence() if found.recording is not None else ""
    diagnosis = diagnosis_of(death, incidents.diagnosed(fault), verdict, grew)
    outcome, note = outcome_of(death)
    incident = replace(
        Incident.of(fault, diagnosis),
        target=death.target,
        actor_id=death.actor_id,
        job_id=death.job_id,
        node=cluster.node_id,
        pid=death.pid,
        incarnation=max(0, actor.lives - death.comes_back) if actor is not None else 0,
        detect_s=max(0.0, death.noticed_at - death.at),
        remedy=(Action.RESTART_PROCESS if death.comes_back else Action.NONE).value,
        tokens_lost=None,  # nobody knows: the count died with the process
        notes=(note, *death.notes),
    )
    incident = found.noted_on(incident)
    if found.recording is None:
        incident = replace(incident, notes=(*incident.notes, *_last_words(stderr)))
    incident = incidents.closed(incident, outcome)
    incidents.record(incident)
    return incident


def _verdict(death: Death, seen: Recording, *, recorded: bool) -> CauseOfDeath | None:
    with harmless("agent_deaths"):
        detail = (death.actor.memory_said if death.actor is not None else "") or death.detail
        evidence = gather(
            seen, died_at=death.at, exitcode=death.exitcode, ray_kind=death.kind, ray_said=detail
        )
        return who_killed(replace(evidence, recorded=recorded))
    return None


def _recording_of_node(death: Death, stderr: str) -> Recording:
    """Return what would stand in its recording of the node around it."""
    at, seen = death.around
    return Recording(
        process=death.process,
        alive=False,
        stderr=stderr,
        last_at=at,
        memory=() if seen is None else (MemoryPoint(at=at, private=0, node_ratio=seen.node_ratio),),
        node_kills=None if seen is None else seen.node_kills,
    )


def _fault(death: Death, verdict: CauseOfDeath | None) -> Fault:
    """Return the facts for the catalog; of an ``__init__`` that raised, what it raised as Ray printed it."""
    raised = exceptions_in(death.init_failed)
    if raised:
        facts = [
            ExceptionFact(type_name=one.type_name, message=one.message, frames=one.frames, pid=death.pid)
            for one in reversed(raised)
        ]
        return Fault(role=Role.ACTOR, operation="__init__", exceptions=tuple(facts), at=death.noticed_at)
    exits = (ProcessExit(role=Role.ACTOR, pid=death.pid, exitcode=death.exitcode, at=death.at),)
    of_memory = verdict.evidence if verdict is not None and verdict.of_memory else ()
    return Fault(role=Role.ACTOR, exits=exits, log=(death.how, *of_memory), at=death.noticed_at)


def _last_words(stderr: str) -> list[str]:
    lines = [line for line in last_lines(stderr, 2 * _STDERR) if not line.startswith(_MARKS)]
    return [f"its stderr: {line[:_LINE_CHARS]}" for line in lines[-_STDERR:]]
