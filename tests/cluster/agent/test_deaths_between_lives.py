"""Deaths as the agent works on them: nothing that fails or is late beside it hides one. No Ray needed."""

import time

import pytest

from rayguard.cluster.agent import worker_deaths as module
from rayguard.cluster.agent.death_verdict import Death
from rayguard.cluster.agent.jobs_here import JobsHere
from rayguard.cluster.agent.journal_feed import KnownIncidents
from rayguard.cluster.agent.worker_deaths import SETTLED_S, Deaths
from rayguard.cluster.agent.worker_table import Worker
from rayguard.metrics.instruments.node import Whose
from rayguard.process.identity import ProcessId
from rayguard.ray_internals.rows import JobRow, WorkerRow
from rayguard.recovery.incident import Incident
from rayguard.recovery.tally import MAX_JOBS

DEAD = Worker(process=ProcessId(2**22 + 5, 7), title="Rollout.run", target="Rollout", job_id="01000000")


class Cluster:
    """Ray knows that it crashed, and is not always to be asked."""

    fails = 0

    def worker_id_of(self, pid):
        return "worker"

    def worker(self, worker_id):
        pid = DEAD.process.pid
        return WorkerRow(
            worker_id=worker_id,
            pid=pid,
            alive=False,
            at=time.time(),
            kind="SYSTEM_ERROR",
            said="End of file.",
        )

    def actor_in(self, worker_id, job_id):
        self.fails -= 1
        if self.fails >= 0:
            raise OSError("Ray does not answer")

    def last_task_of(self, worker_id, pid):
        return ""

    def job(self, job_id):
        return JobRow(job_id=job_id, running=True)


class Kernel:
    """Tells of a death before ``watch`` returns, as it may of a process that is dead already."""

    def __init__(self, name):
        self.name = name

    def watch(self, process, on_death):
        on_death(process)

    def close(self):
        pass


@pytest.fixture
def told():
    return []


@pytest.fixture
def deaths(tmp_path, told, monkeypatch):
    def tell(death, *_):
        told.append(death)
        return Incident(id="i", kind="actor_died", scope="process", cause="c")

    monkeypatch.setattr(module, "DeathWatch", Kernel)
    cluster = Cluster()
    known, jobs = KnownIncidents(tmp_path), JobsHere(cluster.job)
    made = Deaths(cluster, None, known, tell, lambda: (0.0, None), jobs)
    made.watch({DEAD.process: DEAD})
    yield made
    made.close()


def look(deaths, *, later_s=SETTLED_S):
    (case,) = deaths._open.values()
    case.noticed_at = time.time() - later_s
    deaths.reported("worker")
    deaths.look()


def test_of_one_that_was_dead_before_it_was_watched_it_is_known_what_it_did(deaths, told):
    """As when an agent comes back: the kernel tells at once, in another thread."""
    look(deaths)
    assert [(one.pid, one.target, one.job_id) for one in told] == [(DEAD.process.pid, "Rollout", "01000000")]


def test_a_death_is_counted_under_the_class_and_the_job_of_the_dead(deaths):
    """Not under the agent's, which counts it."""
    look(deaths)
    assert deaths.counts == {Whose("actor_died", "Rollout", "01000000"): 1}


def test_an_agent_that_outlives_many_jobs_counts_the_deaths_of_the_last_ones(deaths):
    """All of a job's go at once: to Prometheus they end, and do not fall."""
    for n in range(MAX_JOBS + 1):
        deaths._count(Whose("actor_died", "Rollout", f"{n:02}000000"))
    assert {whose.ray_job for whose in deaths.counts} == {f"{n:02}000000" for n in range(1, MAX_JOBS + 1)}


@pytest.mark.parametrize(
    ("second", "driver_end", "whole"),
    [
        (None, "INTENDED_USER_EXIT", False),  # it may be why the driver went
        (None, "SYSTEM_ERROR", True),
        (("01000000", 102.0), "INTENDED_USER_EXIT", True),
        (("01000000", 160.0), "INTENDED_USER_EXIT", False),
        (("02000000", 102.0), "INTENDED_USER_EXIT", False),
    ],
)
def test_who_ends_a_job_as_a_whole_is_told_from_who_ends_one_worker(deaths, second, driver_end, whole):
    """Its driver was killed, or more than one of its workers was told to go at that time."""
    deaths._jobs = JobsHere(lambda job: JobRow(job_id=job, running=False, ended_at=101.0, driver="driver"))
    deaths._cluster.worker = lambda one: WorkerRow(worker_id=one, pid=1, alive=False, kind=driver_end)

    def told_to_go(pid, job, at):
        word = WorkerRow(worker_id="w", pid=pid, alive=False, at=at, kind="SYSTEM_ERROR", job_id=job)
        return Death(process=ProcessId(pid, 0), noticed_at=at, word=word, exitcode=-15, job_over_at=101.0)

    if second is not None:
        deaths._was_killed(told_to_go(8, *second))
    assert deaths._was_killed(told_to_go(7, "01000000", 100.0)) is whole


def test_a_worker_is_kept_until_its_death_is_told(deaths, told):
    """An agent that ends in between finds it again."""
    assert deaths.watched() == [DEAD]
    look(deaths)
    assert told
    assert deaths.watched() == []


@pytest.mark.parametrize(("fails", "are_told", "looks"), [(1, 1, 2), (9, 0, 3)])
def test_a_death_that_cannot_be_understood_at_once_is_looked_at_again(deaths, told, fails, are_told, looks):
    """And not for ever."""
    deaths._cluster.fails = fails
    for _ in range(looks):
        assert deaths.pending
        look(deaths)
    assert not deaths.pending
    assert len(told) == are_told


def test_a_clock_that_was_set_back_holds_up_nothing(deaths, told):
    """A death of "in an hour" is one of now."""
    (case,) = deaths._open.values()
    look(deaths, later_s=-3_600.0)
    assert case.noticed_at <= time.time()
    assert told == []
