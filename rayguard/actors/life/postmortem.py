"""Why an actor's last process died, as its next life tells it: Ray's word, the flight recording, the kernel.

Who killed it is decided by ``rayguard.process.death_cause.killer``; here its verdict meets the catalog's, and
what the process did last becomes notes. None of it may keep an actor from starting.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rayguard.actors.life.incarnation import PROCESS_PART, ActorMemory, PastDeath
from rayguard.faults.diagnosis import Diagnosis, Kind, Scope
from rayguard.harmless import harmless
from rayguard.home import home

if TYPE_CHECKING:
    from rayguard.process.death_cause.killer import CauseOfDeath
    from rayguard.process.flight.recording import MethodState, Recording
    from rayguard.recovery.incident import Incident

_EVENTS = 3
_LINES = 5
_LINE_CHARS = 300
_RAYS_MARKS = (":job_id:", ":actor_name:", ":task_name:")  # lines that Ray writes into each worker's files


@dataclass(frozen=True, slots=True)
class Postmortem:
    """What was found about one death: the recording where there is one on this node, and the verdict."""

    recording: Recording | None = None
    verdict: CauseOfDeath | None = None

    @classmethod
    def of(cls, death: PastDeath, actor_id: str) -> Postmortem:
        """Return what can be found about a death that nobody left word of."""
        with harmless("postmortem"):
            from rayguard.process.death_cause.evidence import gather  # noqa: PLC0415
            from rayguard.process.death_cause.killer import DeathEvidence, who_killed  # noqa: PLC0415 - only after a death

            recording = _recording(death.pid, actor_id)
            kind, _, said = death.how.partition(": ")
            if recording is None:
                seen = DeathEvidence(pid=death.pid, exitcode=death.exitcode, ray_kind=kind, ray_said=said)
            else:
                seen = gather(
                    recording, died_at=death.at, exitcode=death.exitcode, ray_kind=kind, ray_said=said
                )
            return cls(recording, who_killed(seen))
        return cls()

    @classmethod
    def of_word(cls, pid: int, actor_id: str) -> Postmortem:
        """Return the recording of a process that told why it ended."""
        with harmless("postmortem"):
            return cls(_recording(pid, actor_id) if pid else None)
        return cls()

    @property
    def log(self) -> tuple[str, ...]:
        """What the catalog should see besides Ray's word: the signs that memory was why."""
        verdict = self.verdict
        return verdict.evidence if verdict is not None and verdict.of_memory else ()

    def judged(self, diagnosis: Diagnosis, death: PastDeath) -> Diagnosis:
        """Return the catalog's verdict with ours, where ours knows more."""
        with harmless("postmortem"):
            verdict = self.verdict
            if verdict is None:
                return diagnosis
            evidence = _once((*verdict.evidence, *diagnosis.evidence))
            judged = replace(diagnosis, confidence=verdict.confidence, evidence=evidence)
            if verdict.of_memory:
                cause = self._of_memory(verdict, death.pid)
                return replace(judged, kind=Kind(verdict.kind), scope=Scope.PROCESS, cause=cause)
            if diagnosis.kind is Kind.ACTOR_DIED and death.exitcode is None:
                return replace(judged, cause=f"the actor's process {death.pid} {verdict.how}; {death.how}")
        return diagnosis

    def noted_on(self, incident: Incident) -> Incident:
        """Return ``incident`` with what the process did last."""
        with harmless("postmortem"):
            if self.recording is not None:
                return replace(incident, notes=_once((*incident.notes, *_notes(self.recording))))
        return incident

    def _of_memory(self, verdict: CauseOfDeath, pid: int) -> str:
        grew = self.recording.sentence() if self.recording is not None else ""
        if not grew:
            return f"the actor's process {pid} {verdict.how}"
        return f"the actor's process {pid}: {grew}, {verdict.how.removeprefix('was ')}"


def told_by_next_life(actor_id: str, pid: int) -> str:
    """Return the kind of the incident that an actor's present life tells of the end of ``pid``; '' for none.

    That life may be on another node, with another journal.
    """
    told = ActorMemory(actor_id, PROCESS_PART).load().get("told") or {}
    return str(told.get("kind", "")) if told.get("pid") == pid else ""


def _recording(pid: int, actor_id: str) -> Recording | None:
    from rayguard.process.flight.reader import recording_of  # noqa: PLC0415 - only after a death

    return recording_of(home(), pid, actor_id=actor_id)


def _notes(recording: Recording) -> list[str]:
    from rayguard.process.death_cause.evidence import last_lines  # noqa: PLC0415 - only after a death

    grew = recording.sentence()
    notes = [f"flight recorder: {grew}"] if grew else []
    if recording.memory:
        last = recording.memory[-1]
        notes.append(
            f"flight recorder: {last.private / 1e6:.0f} MB of its own at the end, {_step(recording)}"
        )
    notes += [f"flight recorder: {_running(one)}" for one in recording.running[:_EVENTS]]
    called = [one for one in recording.methods if one.ended]
    if called and not recording.running:
        last_call = max(called, key=lambda one: one.ended_at)
        notes.append(f"flight recorder: `{last_call.name}` ran last, until {_clock(last_call.ended_at)}")
    notes += [f"flight recorder: {_clock(one.at)} {one.line}" for one in recording.events[-_EVENTS:]]
    lines = [line for line in last_lines(recording.stderr, 2 * _LINES) if not line.startswith(_RAYS_MARKS)]
    return notes + [f"its stderr: {line[:_LINE_CHARS]}" for line in lines[-_LINES:]]


def _step(recording: Recording) -> str:
    return f"after step {recording.step}" if recording.step >= 0 else "no step was told"


def _running(method: MethodState) -> str:
    calls = f"{method.running} calls of `{method.name}`" if method.running > 1 else f"`{method.name}`"
    return f"{calls} ran, since {_clock(method.begun_at)} (call {method.begun})"


def _clock(at: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(at))


def _once(lines: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(lines))
