"""A budget across the actors of a job, and the time that faults cost it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayguard.cluster.job_budget import JobBudgetPolicy, Spending
from rayguard.cluster.job_clock import LATE_S, JobClock
from rayguard.errors import ConfigError


def test_a_large_job_may_restart_more():
    """Never fewer than the least."""
    policy = JobBudgetPolicy(at_least=20, per_actor=0.5)
    assert [policy.for_actors(n).max_restarts for n in (0, 10, 1_000)] == [20, 20, 500]


def test_the_share_falls_with_each_restart_and_comes_back_with_time():
    """From one to zero, and not below."""
    spending = Spending(JobBudgetPolicy(at_least=4, within_s=100.0))
    shares = []
    for at in (0.0, 10.0, 20.0, 30.0, 40.0):
        spending.spend(at)
        shares.append(spending.left(0, at))
    assert shares == [0.75, 0.5, 0.25, 0.0, 0.0]
    assert spending.left(0, 125.0) == 0.5
    assert spending.left(0, 1_000.0) == 1.0


@pytest.mark.parametrize("wrong", [{"at_least": 0}, {"per_actor": -1.0}, {"within_s": 0.0}])
def test_a_budget_without_meaning_is_refused(wrong):
    """At once, and not when it would count."""
    with pytest.raises(ConfigError):
        JobBudgetPolicy(**wrong)


def test_time_is_interrupted_once_however_many_incidents_are_open():
    """Spans that overlap are one; an open one goes on."""
    clock = JobClock(began_at=100.0).at(200.0, [(110.0, 120.0), (115.0, 130.0), (190.0, None)])
    assert (clock.wall_s, clock.interrupted_s) == (100.0, 30.0)
    assert clock.at(210.0, [(110.0, 120.0), (115.0, 130.0), (190.0, None)]).interrupted_s == 40.0


def test_what_is_forgotten_stays_counted():
    """The oldest incidents go; the time that they cost does not."""
    clock = JobClock(began_at=0.0).at(100.0, [(10.0, 50.0)])
    clock = clock.at(100.0 + 2 * LATE_S, [(10.0, 50.0)])
    assert clock.at(200.0 + 2 * LATE_S, []).interrupted_s == 40.0


spans = st.lists(
    st.tuples(st.floats(0, 2_000), st.one_of(st.none(), st.floats(0, 500))).map(
        lambda pair: (pair[0], None if pair[1] is None else pair[0] + pair[1])
    ),
    max_size=6,
)


@given(st.lists(st.tuples(st.floats(0, 300), spans), max_size=8))
def test_the_clock_never_runs_back_nor_counts_more_than_there_was(rounds):
    """Whatever is told, also of the past, and whatever is forgotten again."""
    clock, now = JobClock(began_at=0.0), 0.0
    for more_s, seen in rounds:
        now += more_s
        later = clock.at(now, seen)
        assert later.interrupted_s >= clock.interrupted_s
        assert later.interrupted_s <= later.wall_s + 1e-6
        clock = later
