"""What the death of a Ray worker is: a normal end, somebody else's story, or one to be told here. Pure.

Who gathers the facts is ``deaths``. The rule of who tells: the next life of a guarded or watched actor, as
it knows most (``rayguard.actors.restart``); the agent, where there is no next life or it has not told in
time.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING

from rayguard.faults.diagnosis import Diagnosis, Kind, Scope
from rayguard.recovery.incident import Incident, Outcome
from rayguard.recovery.remedy import RECYCLED, Action

if TYPE_CHECKING:
    from rayguard.process.killer import CauseOfDeath

RAY_S = 10.0  # after which Ray is taken to know nothing of a death
SOONER_S = 10.0  # how long before its end a process may have told why it ends
NEXT_LIFE_S = 30.0
_ELSEWHERE = frozenset({Scope.REQUEST.value, Scope.ENGINE.value})
_ENDS = frozenset({Action.RESTART_PROCESS.value, RECYCLED.label})
_EXIT_CODE = re.compile(r"\bexit code (\d+)")
_USERS_ERROR, _INIT = "USER_ERROR", "initialization method"
_RETURNS = frozenset({"RESTARTING", "ALIVE", "PENDING_CREATION", "DEPENDENCIES_UNREADY"})


@dataclass(frozen=True, slots=True, kw_only=True)
class RaysWord:
    """Ray's row of one worker. Times are wall-clock seconds; ``kind`` is its WorkerExitType."""

    worker_id: str
    pid: int
    alive: bool
    began_at: float = 0.0
    at: float = 0.0
    kind: str = ""
    said: str = ""
    job_id: str = ""
    worker: bool = True  # and no driver, no process that spills objects


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorFacts:
    """What Ray knows of an actor. ``lives`` counts its restarts."""

    actor_id: str
    class_name: str = ""
    job_id: str = ""
    state: str = ""
    pid: int = 0
    lives: int = 0
    memory_said: str = ""  # of Ray's memory monitor, where that ended it
    ours: bool = False  # an agent or a supervisor of rayguard

    @property
    def returns(self) -> bool:
        """Say whether there is or will be a next life."""
        return self.state in _RETURNS


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """One death as far as it is known at the moment. ``noticed_at`` and ``at`` are wall-clock seconds."""

    pid: int
    noticed_at: float
    at: float
    word: RaysWord | None = None
    actor: ActorFacts | None = None
    exitcode: int | None = None
    idle: bool = False  # it had no work when it was last seen
    told: bool = False  # an incident of it stands in the journal
    target: str = ""
    job_id: str = ""

    @property
    def kind(self) -> str:
        """Return Ray's word of the end; '' when Ray knows of none."""
        return "" if self.word is None or self.word.alive else self.word.kind

    @property
    def said(self) -> str:
        """Return what Ray says of the end."""
        return self.word.said if self.word is not None and self.kind else "Ray has not noticed it"

    @property
    def how(self) -> str:
        """Return Ray's kind and word of the end in one."""
        return f"{self.kind}: {self.said}" if self.kind else self.said

    @property
    def comes_back(self) -> bool:
        """Say whether Ray starts, or has started, a process in its place."""
        return bool(self.kind) and self.actor is not None and self.actor.returns

    @property
    def init_failed(self) -> str:
        """Return what Ray printed of the error of an actor's ``__init__``; '' where that was not why."""
        return self.said if self.kind == _USERS_ERROR and _INIT in self.said else ""

    @property
    def whose(self) -> str:
        """Say whose process it was."""
        if self.actor is not None:
            return "the actor's process"
        return "the process of a task" if self.target else "the idle worker process"


class Verdict(str, Enum):
    """What is to be done about a death."""

    WAIT = "wait"
    NORMAL = "normal"
    TOLD = "told"  # by somebody else
    TELL = "tell"


def judge(death: Death, now: float) -> Verdict:
    """Return what is to be done about ``death`` now (wall-clock seconds). Never WAIT for ever."""
    if not death.kind:
        if now - death.noticed_at < RAY_S:
            return Verdict.WAIT
        idle = death.idle and death.actor is None  # since it was seen last, an actor may have come into it
        return Verdict.NORMAL if idle else Verdict.TOLD if death.told else Verdict.TELL
    if death.kind.startswith("INTENDED") or (death.word is not None and not death.word.worker):
        return Verdict.NORMAL
    if death.actor is not None and death.actor.ours:
        return Verdict.NORMAL
    if death.told:
        return Verdict.TOLD
    waits = death.comes_back and now - death.noticed_at < NEXT_LIFE_S
    return Verdict.WAIT if waits else Verdict.TELL


def exitcode_of(word: RaysWord | None, told: int | None) -> int | None:
    """Return how a process ended: Ray's word, else what the kernel told.

    Ray's worker turns ``sys.exit(4)`` into an end of its own, with 0 for the kernel.
    """
    said = None if word is None or word.alive else _EXIT_CODE.search(word.said)
    return told if said is None else int(said[1])


def of_this_death(incident: Incident, pid: int, actor_id: str, at: float) -> bool:
    """Say whether ``incident`` tells of the end of that process at about ``at`` (wall-clock seconds)."""
    return (
        incident.pid == pid
        and incident.actor_id in ("", actor_id)
        and incident.scope not in _ELSEWHERE
        and not incident.signature.startswith(("memory.", "agent."))
        and (incident.detected_at >= at - SOONER_S or _leads_to(incident, at))
    )


def _leads_to(incident: Incident, at: float) -> bool:
    """Say whether an older incident was to end the process, or was closed by its next life."""
    ends = incident.outcome is Outcome.OPEN and incident.remedy in _ENDS
    return ends or (incident.closed_at is not None and incident.closed_at >= at)


def left_open(incident: Incident, pid: int, actor_id: str, at: float) -> bool:
    """Say whether ``incident`` was open in that process when it ended, and will be closed by nobody."""
    return (
        incident.outcome is Outcome.OPEN
        and incident.pid == pid
        and incident.actor_id in ("", actor_id)
        and incident.detected_at <= at + SOONER_S
    )


def diagnosis_of(death: Death, found: Diagnosis, verdict: CauseOfDeath | None, grew: str = "") -> Diagnosis:
    """Return the catalog's verdict with that on who killed it, where this one knows more.

    ``grew`` says how its memory grew, from its recording.
    """
    if verdict is not None and verdict.of_memory:
        name = f"{death.whose} {death.pid}"
        cause = f"{name}: {grew}, {verdict.how.removeprefix('was ')}" if grew else f"{name} {verdict.how}"
        evidence = _once((*verdict.evidence, *found.evidence))
        return replace(
            found,
            kind=Kind(verdict.kind),
            scope=Scope.PROCESS,
            cause=cause,
            confidence=verdict.confidence,
            evidence=evidence,
        )
    if death.init_failed:
        return found
    if found.kind not in (Kind.ACTOR_DIED, Kind.ACTOR_UNAVAILABLE, Kind.UNKNOWN) or verdict is None:
        return found
    return replace(
        found,
        kind=Kind.ACTOR_DIED,
        scope=Scope.PROCESS,
        cause=f"{death.whose} {death.pid} {verdict.how}; {death.how}",
        confidence=verdict.confidence,
        evidence=_once((*verdict.evidence, death.how)),
    )


def outcome_of(death: Death) -> tuple[Outcome, str]:
    """Return how the death ended for the user, and what is to be said of it."""
    if not death.kind:
        return Outcome.FAILED, "Ray takes the process for alive: who calls it waits"
    if death.actor is None:
        said = "Ray repeats the task as often as its max_retries allows; after that its caller gets an error"
        return Outcome.ANSWERED, said
    if death.comes_back:
        return Outcome.RECOVERED, "Ray started the actor again, and nobody else told why"
    return Outcome.FAILED, "Ray does not start the actor again"


def _once(lines: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(lines))
