"""Which jobs run and which are over, as an agent asks Ray for it: seldom, and of each end once."""

import pytest

from rayguard.cluster.agent.jobs_here import AGAIN_S, SOON_S, JobsHere
from rayguard.metrics.node.merging import OTHER
from rayguard.ray_internals.rows import JobRow

JOB = "01000000"


class Ray:
    """Ray's table of jobs, and how often it was asked."""

    def __init__(self):
        self.rows, self.asked, self.now = {JOB: JobRow(job_id=JOB, running=True)}, [], 100.0

    def job(self, job_id):
        self.asked.append(job_id)
        return self.rows.get(job_id)

    def end(self, at=50.0):
        self.rows[JOB] = JobRow(job_id=JOB, running=False, ended_at=at)


@pytest.fixture
def ray():
    return Ray()


@pytest.fixture
def jobs(ray):
    return JobsHere(ray.job, lambda: ray.now)


def test_a_job_that_runs_is_asked_for_now_and_then(ray, jobs):
    """Every node of a large cluster does so."""
    for _ in range(20):
        assert jobs.look({JOB, "", OTHER}) == {JOB: False}
        ray.now += AGAIN_S / 10
    assert ray.asked == [JOB] * 2


def test_a_job_that_is_over_stays_so_and_is_asked_for_no_more(ray, jobs):
    """Ray may forget it meanwhile."""
    jobs.look({JOB})
    ray.end()
    ray.now += AGAIN_S
    assert jobs.look({JOB}) == {JOB: True}
    ray.rows.clear()
    ray.now += 10 * AGAIN_S
    assert jobs.look({JOB}) == {JOB: True}
    assert jobs.of(JOB).ended_at == 50.0
    assert len(ray.asked) == 2


def test_after_a_death_that_the_end_of_its_job_may_explain_it_is_asked_at_once(ray, jobs):
    """By who judges the death, and by the next look."""
    jobs.look({JOB})
    ray.end()
    ray.now += SOON_S
    assert jobs.of(JOB).ended_at == 50.0
    ray.rows[JOB] = JobRow(job_id=JOB, running=True)
    other = JobsHere(ray.job, lambda: ray.now)
    other.look({JOB})
    ray.end()
    assert other.look({JOB}) == {JOB: False}
    other.changed(JOB)
    assert other.look({JOB}) == {JOB: True}


def test_what_nobody_counts_any_more_is_forgotten(ray, jobs):
    """An agent outlives many jobs."""
    jobs.look({JOB})
    assert jobs.look(set()) == {}


def test_of_a_job_that_ray_cannot_be_asked_for_nothing_is_said(ray, jobs, caplog):
    """Its alerts are told as before."""

    def fails(job_id):
        raise OSError("no answer")

    unanswered = JobsHere(fails, lambda: ray.now)
    assert unanswered.look({JOB}) == {}
    assert not unanswered.of(JOB).ended_at
    assert jobs.look({"09000000"}) == {}
    assert not jobs.of("09000000").ended_at
