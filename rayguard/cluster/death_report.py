"""The incident of a death that nobody else tells: the facts gathered, diagnosed, written.

Whether it is to be told is decided in ``death_story``; who killed the process in ``rayguard.process.killer``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from rayguard.actors import records
from rayguard.actors.postmortem import Postmortem
from rayguard.cluster.death_story import diagnosis_of, outcome_of
from rayguard.faults.fault import ExceptionFact, Fault, ProcessExit, Role
from rayguard.faults.printed.traceback import exceptions_in
from rayguard.process.killer import CauseOfDeath, who_killed
from rayguard.process.killer_evidence import gather, last_lines
from rayguard.process.recorder_reading import Seen
from rayguard.process.recording import MemoryPoint, Recording
from rayguard.recovery.harmless import harmless
from rayguard.recovery.incident import Incident
from rayguard.recovery.remedy import Action

if TYPE_CHECKING:
    from rayguard.cluster.agent_ray import ClusterOfAgent
    from rayguard.cluster.death_story import Death
    from rayguard.process.identity import ProcessId

Around = tuple[float, Seen | None]  # when (wall clock), how full memory was, whom the kernel had killed

_STDERR = 5
_LINE_CHARS = 300
_MARKS = (":job_id:", ":actor_name:", ":task_name:")  # lines that Ray writes into each worker's files


class Reporter:
    """Writes incidents."""

    def __init__(self, cluster: ClusterOfAgent) -> None:
        self._cluster = cluster

    def tell(self, death: Death, process: ProcessId, around: Around, notes: tuple[str, ...]) -> Incident:
        """Write the incident of ``death`` and return it. ``around``: the node, as seen last before it."""
        actor = death.actor
        actor_id = actor.actor_id if actor is not None else ""
        stderr = self._cluster.stderr_of(death.word.worker_id, death.pid) if death.word is not None else ""
        found = Postmortem.of_word(death.pid, actor_id)
        seen = found.recording or _seen_from_here(process, around, stderr)
        verdict = self._verdict(death, seen, recorded=found.recording is not None)
        fault = _fault(death, verdict)
        grew = found.recording.sentence() if found.recording is not None else ""
        diagnosis = diagnosis_of(death, records.diagnosed(fault), verdict, grew)
        outcome, note = outcome_of(death)
        incident = replace(
            Incident.of(fault, diagnosis),
            target=death.target,
            actor_id=actor_id,
            job_id=(actor.job_id if actor is not None else "") or death.job_id,
            node=self._cluster.node_id,
            pid=death.pid,
            incarnation=max(0, actor.lives - death.comes_back) if actor is not None else 0,
            detect_s=max(0.0, death.noticed_at - death.at),
            remedy=(Action.RESTART_PROCESS if death.comes_back else Action.NONE).value,
            tokens_lost=None,  # nobody knows: the count died with the process
            notes=(note, *notes),
        )
        incident = found.noted_on(incident)
        if found.recording is None:
            incident = replace(incident, notes=(*incident.notes, *_last_words(stderr)))
        incident = records.closed(incident, outcome)
        records.record(incident)
        return incident

    def _verdict(self, death: Death, seen: Recording, *, recorded: bool) -> CauseOfDeath | None:
        with harmless("agent_deaths"):
            said = (death.actor.memory_said if death.actor is not None else "") or death.said
            evidence = gather(
                seen, died_at=death.at, exitcode=death.exitcode, ray_kind=death.kind, ray_said=said
            )
            return who_killed(replace(evidence, recorded=recorded))
        return None


def _seen_from_here(process: ProcessId, around: Around, stderr: str) -> Recording:
    """Return what would stand in its recording of the node around it."""
    at, seen = around
    return Recording(
        process=process,
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
