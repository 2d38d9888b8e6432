"""The numbers: exact where they must be, cheap where they are hot, whole after a fork."""

import math
import os
import signal
import sys
import threading
import timeit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayguard.recovery.incident import Incident, Outcome
from rayguard.recovery.tally import MAX_JOBS, TALLY, Durations, Tally


def incident(**changes):
    values = {"id": "i1", "kind": "engine_dead", "scope": "engine", "cause": "x", "remedy": "restart_engine"}
    return Incident(**{**values, "outcome": Outcome.RECOVERED, **changes})


@given(st.lists(st.floats()))
def test_durations_are_monotone_and_each_counts_once(seconds):
    """No observation, however odd, makes a number fall or poisons the sum."""
    durations = Durations((0.1, 1.0, 10.0))
    for value in seconds:
        counts, total = list(durations.counts), durations.sum
        durations.observe(value)
        assert all(now >= then for now, then in zip(durations.counts, counts, strict=True))
        assert durations.sum >= total
    assert sum(durations.counts) == sum(not math.isnan(value) for value in seconds)


def test_a_bound_belongs_to_its_own_bucket():
    """Prometheus buckets are 'less or equal'."""
    durations = Durations((0.1, 1.0))
    for value in (0.1, 0.100001, 1.0, 1.5):
        durations.observe(value)
    assert durations.counts == [1, 2, 1]


def test_closed_incidents_are_counted_with_their_times():
    """By kind, scope, remedy, outcome and job; an unknown time is not a time of zero."""
    tally = Tally()
    tally.closed(incident(detect_s=0.02, recover_s=3.0))
    tally.closed(incident(id="i2", outcome=Outcome.FAILED, job_id="02000000"))
    assert tally.incidents == {
        ("engine_dead", "engine", "restart_engine", "recovered", ""): 1,
        ("engine_dead", "engine", "restart_engine", "failed", "02000000"): 1,
    }
    assert (sum(tally.detect_s.counts), sum(tally.recover_s.counts)) == (1, 1)
    assert tally.recover_s.sum == 3.0
    assert tally.last_incident == "i2"


def test_an_incident_without_a_remedy_is_counted_under_a_name():
    """An empty label would be a bar without a name in the dashboard."""
    tally = Tally()
    tally.closed(incident(remedy=""))
    assert [remedy for _, _, remedy, *_ in tally.incidents] == ["none"]


def test_jobs_of_long_ago_are_let_go():
    """An agent lives as long as its node, and meets any number of jobs."""
    tally = Tally()
    for job in range(MAX_JOBS + 5):
        tally.closed(incident(job_id=f"{job:02}"))
        tally.closed(incident(job_id=f"{MAX_JOBS + 5:02}"))
    assert len({job for *_, job in tally.incidents}) == MAX_JOBS
    assert sum(n for (*_, job), n in tally.incidents.items() if job == f"{MAX_JOBS + 4:02}") == 1


def test_an_opened_incident_is_the_last_one_before_it_is_counted():
    """Status shows it while the repair is running."""
    tally = Tally()
    tally.opened(incident(outcome=Outcome.OPEN))
    assert tally.last_incident == "i1"
    assert not tally.incidents


def test_an_engine_keeps_its_numbers():
    """The same slot is the same object, from every thread."""
    tally = Tally()
    tally.engine("rollout").restarts += 1
    assert tally.engine("rollout").restarts == 1


def test_counts_of_threads_are_exact():
    """Incidents and guard errors under the lock; calls by what CPython guarantees (with its GIL)."""
    tally, threads, each = Tally(), 8, 3_000
    start = threading.Barrier(threads)

    def work():
        start.wait(10)
        for _ in range(each):
            tally.calls["Rollout"] += 1
            tally.guard_error("journal")
            tally.closed(incident(recover_s=1.0))

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        workers = [threading.Thread(target=work) for _ in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(60)
    finally:
        sys.setswitchinterval(interval)
    expected = threads * each
    assert tally.guard_errors["journal"] == expected
    assert sum(tally.incidents.values()) == expected
    assert sum(tally.recover_s.counts) == expected
    if not hasattr(sys, "_is_gil_enabled") or sys._is_gil_enabled():
        assert tally.calls["Rollout"] == expected


def test_counting_a_call_is_cheap():
    """2 us is the budget of a whole guarded call; counting it must not be visible in that."""
    tally = Tally()
    tally.calls["Rollout"] += 0
    best = min(
        timeit.repeat("tally.calls['Rollout'] += 1", globals={"tally": tally}, number=20_000, repeat=20)
    )
    assert best / 20_000 < 0.5e-6


def test_a_snapshot_does_not_change_any_more():
    """A scrape sees one moment."""
    tally = Tally()
    tally.engine("a").tokens_generated = 5
    tally.closed(incident(recover_s=1.0))
    seen = tally.snapshot()
    tally.engine("a").tokens_generated = 6
    tally.closed(incident(recover_s=1.0))
    tally.calls["x"] += 1
    assert seen.engines["a"].tokens_generated == 5
    assert sum(seen.incidents.values()) == sum(seen.recover_s.counts) == 1
    assert not seen.calls


def test_counting_inside_counting_does_not_hang():
    """A signal handler may count while its thread holds the lock."""
    tally = Tally()
    with tally._lock:
        tally.guard_error("watchdog")
    assert tally.guard_errors["watchdog"] == 1


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_counts_its_own_and_never_hangs():
    """Another thread of the parent holds the lock at the moment of the fork."""
    TALLY.calls["before-fork"] += 1
    held, release = threading.Event(), threading.Event()

    def hold():
        with TALLY._lock:
            held.set()
            release.wait(30)

    holder = threading.Thread(target=hold)
    holder.start()
    assert held.wait(10)
    child = os.fork()
    if child == 0:
        signal.alarm(10)  # a child that hangs on the lock is ended by this, with another status
        TALLY.guard_error("child")
        os._exit(0 if TALLY.guard_errors == {"child": 1} and not TALLY.calls else 1)
    release.set()
    holder.join(10)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert TALLY.calls["before-fork"] >= 1
