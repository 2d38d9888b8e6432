"""What the death of a Ray worker is: a normal end, somebody else's story, or one to be told here. Pure.

Who gathers the facts is ``worker_deaths``. The rule of who tells: the next life of a guarded or watched
actor, as it knows most (``rayguard.actors.guard.restarts``); the agent, where there is none or it has not
told in time.
"""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING

from rayguard.faults.diagnosis import Diagnosis, Kind, Scope
from rayguard.recovery.incident import Incident, Outcome
from rayguard.recovery.remedy import HIRED_ANEW, RECYCLED, Action

if TYPE_CHECKING:
    from rayguard.cluster.agent.worker_table import Worker
    from rayguard.process.death_cause.killer import CauseOfDeath
    from rayguard.process.flight.readings import MachineReading
    from rayguard.process.identity import ProcessId
    from rayguard.ray_internals.rows import ActorRow, WorkerRow

    # When (wall clock), how full memory was, whom the kernel had killed.
    Around = tuple[float, MachineReading | None]

RAY_S = 10.0  # after which Ray is taken to know nothing of a death
SOONER_S = 10.0  # how long before its end a process may have told why it ends
NEXT_LIFE_S = 30.0
# Ray ends a job's workers as soon as it misses the driver; that the job is over it notes a moment later.
JOB_ENDS_S = 5.0
WITH_JOB_S = 30.0  # within which it ends them; what runs later belongs to a detached actor
IDLE, DRIVER = "IDLE", "driver"  # in the place of a class
DRIVER_DIED = "cluster.driver_died"
_DRIVER_ADVICE = (
    "read the driver's own output, and look for who ended it: the kernel's log (dmesg), a scheduler's limits,"
    " a terminal that was closed (`ray job submit`, nohup or tmux outlive it)"
)
_ELSEWHERE = frozenset({Scope.REQUEST.value, Scope.ENGINE.value})
_ENDS = frozenset({Action.RESTART_PROCESS.value, RECYCLED.label})
_EXIT_CODE = re.compile(r"\bexit code (\d+)")
_WITH_OWNER = re.compile("job has finished|owner has died|owner process")
_USERS_ERROR, _INIT = "USER_ERROR", "initialization method"


@dataclass(slots=True, kw_only=True)
class Death:
    """One death, as far as it is known, until it is told or known to be nobody's business."""

    process: ProcessId
    noticed_at: float  # wall clock
    worker: Worker | None = None  # as it was seen last
    word: WorkerRow | None = None
    actor: ActorRow | None = None
    asked: bool = False  # whose process it was
    exitcode: int | None = None
    recorded: bool = False  # an incident of it stands in the journal, or its next life tells
    told_as: str = ""  # the kind that the next life found
    target: str = ""
    forks: tuple[int, ...] = ()
    notes: list[str] = field(default_factory=list)
    around: Around = (0.0, None)  # the node as it was seen last before
    failures: int = 0  # to understand it
    job_over_at: float = 0.0  # wall clock; 0 while it runs, or where nobody knows
    job_killed: bool = False  # its driver was, or several of its workers were told to go at once
    of_rayguard: bool = False  # its job is one of rayguard's own

    @property
    def pid(self) -> int:
        """Return the pid that it had."""
        return self.process.pid

    @property
    def at(self) -> float:
        """Return when it was (wall clock), as Ray says, else when it was noticed."""
        return self.word.at if self.word is not None and self.word.at else self.noticed_at

    @property
    def actor_id(self) -> str:
        """Return whose process it was; '' for that of a task."""
        return self.actor.actor_id if self.actor is not None else ""

    @property
    def job_id(self) -> str:
        """Return the job that it worked for."""
        named = (one.job_id for one in (self.actor, self.word, self.worker) if one is not None)
        return next(filter(None, named), "")

    @property
    def kind(self) -> str:
        """Return Ray's word of the end; '' when Ray knows of none."""
        return "" if self.word is None or self.word.alive else self.word.kind

    @property
    def detail(self) -> str:
        """Return what Ray says of the end."""
        return self.word.said if self.word is not None and self.kind else "Ray has not noticed it"

    @property
    def how(self) -> str:
        """Return Ray's kind and word of the end in one."""
        return f"{self.kind}: {self.detail}" if self.kind else self.detail

    @property
    def comes_back(self) -> bool:
        """Say whether Ray starts, or has started, a process in its place."""
        return bool(self.kind) and self.actor is not None and self.actor.returns

    @property
    def init_failed(self) -> str:
        """Return what Ray printed of the error of an actor's ``__init__``; '' where that was not why."""
        return self.detail if self.kind == _USERS_ERROR and _INIT in self.detail else ""

    @property
    def driver(self) -> bool:
        """Say whether it was the program that the job is."""
        return self.word is not None and self.word.driver

    @property
    def told_to_go(self) -> bool:
        """Say whether it ended by SIGTERM, which is how Ray ends workers, and a scheduler a whole job."""
        return self.exitcode == -signal.SIGTERM or (bool(self.kind) and "receives a SIGTERM" in self.detail)

    @property
    def hints_at_job_end(self) -> bool:
        """Say whether its job may be over since."""
        return self.driver or bool(_WITH_OWNER.search(self.detail))

    @property
    def with_job(self) -> bool:
        """Say whether it ended with its job, for no reason of its own.

        Who ends a whole job by SIGTERM may reach workers before the driver. One worker that alone was told to
        go may be why the driver failed a moment later.
        """
        if not self.job_over_at or self.driver or (self.actor is not None and self.actor.detached):
            return False
        since_s = self.at - self.job_over_at
        return 0.0 <= since_s < WITH_JOB_S or (
            -JOB_ENDS_S <= since_s < 0.0 and self.told_to_go and self.job_killed
        )

    @property
    def whose(self) -> str:
        """Say whose process it was."""
        if self.driver:
            return "the driver's process"
        if self.actor is not None:
            return "the actor's process"
        return "the process of a task" if self.target else "the idle worker process"


class DeathVerdict(str, Enum):
    """What is to be done about a death."""

    WAIT = "wait"
    NORMAL = "normal"
    RECORDED = "recorded"  # by somebody else
    TELL = "tell"


def judge(death: Death, now: float) -> DeathVerdict:
    """Return what is to be done about ``death`` now (wall-clock seconds). Never WAIT for ever."""
    if not death.kind:
        if now - death.noticed_at < RAY_S:
            return DeathVerdict.WAIT
        # Since it was seen idle, an actor may have come into it.
        idle = death.worker is not None and death.worker.idle and death.actor is None
        return DeathVerdict.NORMAL if idle else DeathVerdict.RECORDED if death.recorded else DeathVerdict.TELL
    if death.kind.startswith("INTENDED") or _nobodys(death) or death.with_job:
        return DeathVerdict.NORMAL
    if death.recorded:
        return DeathVerdict.RECORDED
    wait_s = NEXT_LIFE_S if death.comes_back else JOB_ENDS_S if death.told_to_go else 0.0
    return DeathVerdict.WAIT if now - death.noticed_at < wait_s else DeathVerdict.TELL


def _nobodys(death: Death) -> bool:
    """Say whether it was a process of Ray's or of rayguard's own."""
    if death.of_rayguard or (death.actor is not None and death.actor.ours):
        return True
    return death.word is not None and not (death.word.worker or death.word.driver)


def exitcode_of(word: WorkerRow | None, of_kernel: int | None) -> int | None:
    """Return how a process ended: Ray's word, else what the kernel told.

    Ray's worker turns ``sys.exit(4)`` into an end of its own, with 0 for the kernel.
    """
    named = None if word is None or word.alive else _EXIT_CODE.search(word.said)
    return of_kernel if named is None else int(named[1])


def of_this_death(incident: Incident, death: Death) -> bool:
    """Say whether ``incident`` tells of the end of that process at about that time."""
    return (
        _of_process(incident, death)
        and incident.scope not in _ELSEWHERE
        and not incident.signature.startswith(("memory.", "agent."))
        and (incident.detected_at >= death.at - SOONER_S or _leads_to(incident, death.at))
    )


def _of_process(incident: Incident, death: Death) -> bool:
    return incident.pid == death.pid and incident.actor_id in ("", death.actor_id)


def _leads_to(incident: Incident, at: float) -> bool:
    """Say whether an older incident was to end the process, or was closed by its next life."""
    ends = incident.outcome is Outcome.OPEN and incident.remedy in _ENDS
    return ends or (incident.closed_at is not None and incident.closed_at >= at)


def left_open(incident: Incident, death: Death) -> bool:
    """Say whether ``incident`` was open in that process when it ended, and will be closed by nobody."""
    is_open = incident.outcome is Outcome.OPEN and incident.detected_at <= death.at + SOONER_S
    followed = incident.remedy == HIRED_ANEW.label  # by its pool
    return is_open and not followed and _of_process(incident, death)


def diagnosis_of(death: Death, found: Diagnosis, verdict: CauseOfDeath | None, grew: str = "") -> Diagnosis:
    """Return the catalog's verdict with that on who killed it, where this one knows more.

    ``grew`` says how its memory grew, from its recording.
    """
    if death.driver:
        found = replace(found, scope=Scope.JOB, signature=DRIVER_DIED, advice=_DRIVER_ADVICE, links=())
    if verdict is None:
        return found
    name = f"{death.whose} {death.pid}"
    if verdict.of_memory:
        kind, evidence = Kind(verdict.kind), (*verdict.evidence, *found.evidence)
        cause = f"{name}: {grew}, {verdict.how.removeprefix('was ')}" if grew else f"{name} {verdict.how}"
    elif death.init_failed or found.kind not in (Kind.ACTOR_DIED, Kind.ACTOR_UNAVAILABLE, Kind.UNKNOWN):
        return found
    else:
        kind, evidence = Kind.ACTOR_DIED, (*verdict.evidence, death.how)
        cause = f"{name} {verdict.how}; {death.how}"
    return replace(
        found,
        kind=kind,
        scope=Scope.JOB if death.driver else Scope.PROCESS,
        cause=cause,
        confidence=verdict.confidence,
        evidence=tuple(dict.fromkeys(evidence)),
    )


def outcome_of(death: Death) -> tuple[Outcome, str]:
    """Return how the death ended for the user, and what is to be said of it."""
    if not death.kind:
        return Outcome.FAILED, "Ray takes the process for alive: who calls it waits"
    if death.driver:
        return Outcome.FAILED, "Ray ends the job and its workers with it; detached actors go on"
    if death.actor is None:
        note = "Ray repeats the task as often as its max_retries allows; after that its caller gets an error"
        return Outcome.ANSWERED, note
    if death.comes_back:
        return Outcome.RECOVERED, "Ray started the actor again, and nobody else told why"
    return Outcome.FAILED, "Ray does not start the actor again"
