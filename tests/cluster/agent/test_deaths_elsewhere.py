"""Deaths whose next life is on another node, with another journal: told there and not here."""

import threading
import time

import pytest

from rayguard.cluster.agent import worker_deaths as module
from rayguard.cluster.agent.jobs_here import JobsHere
from rayguard.cluster.agent.journal_feed import KnownIncidents
from rayguard.cluster.agent.worker_deaths import Deaths
from rayguard.metrics.instruments.node import Whose
from rayguard.ray_internals.rows import ActorRow, WorkerRow

DEADLINE_S = 30
PID = 2**22 + 5  # nobody's


class Cluster:
    """Ray's word: the worker was killed, and its actor lives again elsewhere."""

    def worker(self, worker_id):
        said = "Worker unexpectedly exits with a connection error code 2. End of file."
        return WorkerRow(
            worker_id=worker_id, pid=PID, alive=False, at=time.time(), kind="SYSTEM_ERROR", said=said
        )

    def actor_in(self, worker_id, job_id):
        return ActorRow(actor_id="a", class_name="Rollout", state="ALIVE", pid=1)

    def actor(self, actor_id):
        return self.actor_in("", "")

    def last_task_of(self, worker_id, pid):
        return ""


@pytest.fixture
def told_here():
    return []


@pytest.fixture
def deaths(tmp_path, told_here):
    made = Deaths(
        Cluster(),
        None,
        KnownIncidents(tmp_path),
        lambda *death: told_here.append(death),
        lambda: (0.0, None),
        JobsHere(lambda job_id: None),
    )
    made.reported("worker")
    yield made
    made.close()


def look(deaths, times):
    pause = threading.Event()
    for _ in range(times):
        deaths.look()
        if not deaths.pending:
            return
        pause.wait(0.1)


def test_a_death_that_the_next_life_tells_of_is_not_told_again(deaths, told_here, monkeypatch):
    """It is counted by the kind which that life found."""
    monkeypatch.setattr(
        module, "told_by_next_life", lambda actor_id, pid: {("a", PID): "host_oom"}[actor_id, pid]
    )
    look(deaths, times=10 * DEADLINE_S)
    assert not deaths.pending
    assert dict(deaths.counts) == {Whose("host_oom", "Rollout", ""): 1}
    assert told_here == []


def test_a_death_that_nobody_tells_of_yet_waits(deaths, told_here, monkeypatch):
    """The next life may be slow to come."""
    monkeypatch.setattr(module, "told_by_next_life", lambda actor_id, pid: "")
    look(deaths, times=10)
    assert deaths.pending
    assert told_here == []
