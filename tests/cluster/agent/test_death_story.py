"""Who tells of a death, and what is told: decided from values."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayguard.cluster.agent.death_verdict import (
    DRIVER_DIED,
    JOB_ENDS_S,
    NEXT_LIFE_S,
    RAY_S,
    Death,
    DeathVerdict,
    diagnosis_of,
    exitcode_of,
    judge,
    left_open,
    of_this_death,
    outcome_of,
)
from rayguard.cluster.agent.worker_table import Worker
from rayguard.faults.diagnosis import Diagnosis, Kind, Scope
from rayguard.process.death_cause.killer import CauseOfDeath, Killer
from rayguard.process.identity import ProcessId
from rayguard.ray_internals.rows import ActorRow, WorkerRow
from rayguard.recovery.incident import Incident, Outcome

AT = 1_000.0
CLOSED = "Worker unexpectedly exits with a connection error code 2. End of file."
WORD = WorkerRow(worker_id="w", pid=7, alive=False, at=AT, kind="SYSTEM_ERROR", said=CLOSED)
ACTOR = ActorRow(actor_id="a", class_name="Rollout", state="DEAD")
PROCESS = ProcessId(7, 0)
DEATH = Death(process=PROCESS, noticed_at=AT, word=WORD, actor=ACTOR)
IDLE, BUSY = Worker(process=PROCESS, target="IDLE"), Worker(process=PROCESS, target="Rollout")
COMING = replace(ACTOR, state="RESTARTING")
TOLD_TO_GO = replace(WORD, said="The process receives a SIGTERM.")
DRIVER = replace(WORD, worker=False, driver=True)
KILLED_DRIVER = Death(process=PROCESS, noticed_at=AT, word=DRIVER)
UNKNOWN = Diagnosis(
    signature="unknown", kind=Kind.UNKNOWN, scope=Scope.UNKNOWN, cause="?", confidence=0.1, evidence=("seen",)
)


@pytest.mark.parametrize(
    ("death", "after_s", "verdict"),
    [
        (DEATH, 0, DeathVerdict.TELL),
        (replace(DEATH, actor=None), 0, DeathVerdict.TELL),
        (replace(DEATH, recorded=True), 0, DeathVerdict.RECORDED),
        (replace(DEATH, word=replace(WORD, kind="INTENDED_SYSTEM_EXIT")), 0, DeathVerdict.NORMAL),
        (replace(DEATH, word=replace(WORD, kind="INTENDED_USER_EXIT")), 0, DeathVerdict.NORMAL),
        (replace(DEATH, word=replace(WORD, worker=False)), 0, DeathVerdict.NORMAL),
        (KILLED_DRIVER, 0, DeathVerdict.TELL),
        (replace(KILLED_DRIVER, job_over_at=AT), 0, DeathVerdict.TELL),
        (replace(KILLED_DRIVER, recorded=True), 0, DeathVerdict.RECORDED),
        (replace(KILLED_DRIVER, of_rayguard=True), 0, DeathVerdict.NORMAL),
        (replace(KILLED_DRIVER, word=replace(DRIVER, kind="INTENDED_USER_EXIT")), 0, DeathVerdict.NORMAL),
        (replace(DEATH, actor=replace(ACTOR, ours=True)), 0, DeathVerdict.NORMAL),
        (replace(DEATH, actor=COMING), 0, DeathVerdict.WAIT),
        (replace(DEATH, actor=COMING), NEXT_LIFE_S, DeathVerdict.TELL),
        (replace(DEATH, actor=replace(ACTOR, state="ALIVE")), 5, DeathVerdict.WAIT),
        (replace(DEATH, actor=COMING, recorded=True), 5, DeathVerdict.RECORDED),
        (replace(DEATH, word=None), 0, DeathVerdict.WAIT),
        (replace(DEATH, word=replace(WORD, alive=True)), 5, DeathVerdict.WAIT),
        (replace(DEATH, word=None), RAY_S, DeathVerdict.TELL),
        (replace(DEATH, word=None, worker=IDLE, actor=None), RAY_S, DeathVerdict.NORMAL),
        (replace(DEATH, word=None, worker=IDLE), RAY_S, DeathVerdict.TELL),
        (replace(DEATH, word=None, recorded=True), RAY_S, DeathVerdict.RECORDED),
    ],
)
def test_who_tells(death, after_s, verdict):
    """The next life where there is one and it does so in time; nobody of an end that was wanted."""
    assert judge(death, AT + after_s) is verdict


@pytest.mark.parametrize(
    ("death", "over_at", "verdict"),
    [
        (DEATH, AT - 1, DeathVerdict.NORMAL),
        (DEATH, AT + 1, DeathVerdict.TELL),  # the driver failed for it, and was told to by nobody
        (DEATH, AT - 60, DeathVerdict.TELL),  # of what a detached actor made
        (replace(DEATH, exitcode=-15, job_killed=True), AT + 1, DeathVerdict.NORMAL),
        (replace(DEATH, exitcode=-15), AT + 1, DeathVerdict.WAIT),  # alone: the driver may have failed for it
        (replace(DEATH, exitcode=-9, job_killed=True), AT + 1, DeathVerdict.TELL),
        (replace(DEATH, exitcode=-15, job_killed=True), AT + 60, DeathVerdict.WAIT),
        (replace(DEATH, word=TOLD_TO_GO, job_killed=True), AT + 1, DeathVerdict.NORMAL),
        (replace(DEATH, exitcode=-15), 0.0, DeathVerdict.WAIT),  # Ray may not have noted it yet
        (replace(DEATH, actor=replace(ACTOR, detached=True)), AT - 1, DeathVerdict.TELL),
        (replace(DEATH, recorded=True), AT + 1, DeathVerdict.RECORDED),
    ],
)
def test_what_ray_ends_with_a_job_is_no_fault(death, over_at, verdict):
    """Neither by a person nor by a scheduler that ends the whole job; what failed before the driver is one."""
    assert judge(replace(death, job_over_at=over_at), AT) is verdict


def test_a_worker_that_alone_was_told_to_go_is_told_of():
    """Its job goes on; or ends, since the driver fails for it."""
    for over_at in (0.0, AT + 1):
        death = replace(DEATH, exitcode=-15, job_over_at=over_at)
        assert judge(death, AT + JOB_ENDS_S) is DeathVerdict.TELL


def test_a_driver_that_was_killed_is_told_as_that():
    """Of the whole job, with advice for a driver: nothing is to be restarted by anybody here."""
    killed = CauseOfDeath(killer=Killer.OUTSIDE, kind="actor_died", how="died by SIGKILL", confidence=0.9)
    for cause, kind in ((killed, Kind.ACTOR_DIED), (replace(killed, kind="host_oom"), Kind.HOST_OOM)):
        found = diagnosis_of(KILLED_DRIVER, UNKNOWN, cause)
        assert (found.kind, found.scope, found.signature) == (kind, Scope.JOB, DRIVER_DIED)
        assert found.cause.startswith("the driver's process 7 died by SIGKILL")
        assert "driver" in found.advice
    assert outcome_of(KILLED_DRIVER)[0] is Outcome.FAILED


@given(
    kind=st.sampled_from(["", "SYSTEM_ERROR", "USER_ERROR", "NODE_OUT_OF_MEMORY", "INTENDED_USER_EXIT"]),
    state=st.sampled_from([None, "DEAD", "ALIVE", "RESTARTING", "PENDING_CREATION"]),
    recorded=st.booleans(),
    idle=st.booleans(),
)
def test_nobody_waits_for_ever(kind, state, recorded, idle):
    """After the longest of the deadlines each death is decided; what is recorded stays recorded."""
    actor = None if state is None else replace(ACTOR, state=state)
    word = replace(WORD, kind=kind, alive=not kind)
    death = replace(DEATH, word=word, actor=actor, recorded=recorded, worker=IDLE if idle else BUSY)
    verdict = judge(death, AT + max(RAY_S, NEXT_LIFE_S))
    assert verdict is not DeathVerdict.WAIT
    assert not (recorded and verdict is DeathVerdict.TELL)


def incident(**values):
    return Incident(
        **{
            "id": "i",
            "kind": "actor_died",
            "scope": "process",
            "cause": "",
            "pid": 7,
            "actor_id": "a",
            **values,
        }
    )


@pytest.mark.parametrize(
    ("one", "same"),
    [
        (incident(detected_at=AT), True),
        (incident(detected_at=AT - 5), True),
        (incident(detected_at=AT - 500, outcome=Outcome.RECOVERED, closed_at=AT - 400), False),
        (incident(detected_at=AT - 500, outcome=Outcome.RECOVERED, closed_at=AT + 2), True),
        (incident(detected_at=AT - 500, remedy="restart_process"), True),
        (incident(detected_at=AT - 500, remedy="relieve+recycle"), True),
        (incident(detected_at=AT - 500, remedy="restart_engine"), False),
        (incident(detected_at=AT, scope="engine"), False),
        (incident(detected_at=AT, scope="request"), False),
        (incident(detected_at=AT, signature="memory.forecast"), False),
        (incident(detected_at=AT, signature="agent.stopped"), False),
        (incident(detected_at=AT, pid=8), False),
        (incident(detected_at=AT, actor_id="b"), False),
        (incident(detected_at=AT, actor_id=""), True),
    ],
)
def test_which_incident_is_of_a_death(one, same):
    """That of its process and time, of its end and not of its engine."""
    assert of_this_death(one, DEATH) is same


def test_what_a_dead_process_left_open_is_found():
    """And nothing of a later life that has its pid."""
    assert left_open(incident(detected_at=AT - 600), DEATH)
    assert not left_open(incident(detected_at=AT - 600, outcome=Outcome.RECOVERED), DEATH)
    assert not left_open(incident(detected_at=AT + 60), DEATH)
    assert not left_open(incident(detected_at=AT, pid=8), DEATH)
    assert not left_open(incident(detected_at=AT, remedy="restart_process+hired_anew"), DEATH), "by its pool"


def test_rays_word_on_an_exit_code_counts_more_than_the_kernels():
    """Ray's worker turns sys.exit(4) into an end with 0."""
    word = replace(WORD, said="Worker exits unexpectedly. Worker exits with an exit code 4.")
    assert exitcode_of(word, 0) == 4
    assert exitcode_of(replace(word, alive=True), 0) == 0
    assert exitcode_of(WORD, -9) == -9
    assert exitcode_of(None, None) is None


def test_the_verdict_on_the_killer_completes_the_catalogs():
    """Memory wins over what the catalog knows; an __init__ that raised is the catalog's alone."""
    killed = CauseOfDeath(killer=Killer.OUTSIDE, kind="actor_died", how="died by SIGKILL", confidence=0.9)
    plain = diagnosis_of(DEATH, UNKNOWN, killed)
    assert (plain.kind, plain.scope) == (Kind.ACTOR_DIED, Scope.PROCESS)
    assert plain.cause == f"the actor's process 7 died by SIGKILL; SYSTEM_ERROR: {CLOSED}"
    hungry = replace(killed, kind="host_oom", how="was killed by the kernel", evidence=("oom_kill",))
    of_memory = diagnosis_of(DEATH, UNKNOWN, hungry, grew="RSS grew 50 MB a step")
    assert of_memory.kind is Kind.HOST_OOM
    assert of_memory.cause == "the actor's process 7: RSS grew 50 MB a step, killed by the kernel"
    assert of_memory.evidence == ("oom_kill", "seen")
    word = replace(WORD, kind="USER_ERROR", said="an exception in the initialization method (e.g., __init__)")
    assert diagnosis_of(replace(DEATH, word=word), UNKNOWN, killed) == UNKNOWN
    known = replace(UNKNOWN, kind=Kind.DISK_FULL)
    assert diagnosis_of(DEATH, known, killed) == known
    assert diagnosis_of(DEATH, UNKNOWN, None) == UNKNOWN


def test_how_it_ended_for_the_user():
    """A task is repeated by Ray, an actor comes back or does not."""
    assert outcome_of(DEATH)[0] is Outcome.FAILED
    assert outcome_of(replace(DEATH, actor=COMING))[0] is Outcome.RECOVERED
    assert outcome_of(replace(DEATH, actor=None))[0] is Outcome.ANSWERED
    unseen = replace(DEATH, word=replace(WORD, alive=True), actor=replace(ACTOR, state="ALIVE"))
    assert outcome_of(unseen) == (Outcome.FAILED, "Ray takes the process for alive: who calls it waits")
    assert replace(DEATH, actor=None, target="f").whose == "the process of a task"
    assert replace(DEATH, actor=None).whose == "the idle worker process"
