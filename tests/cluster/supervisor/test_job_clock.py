"""The time that faults cost a job."""

from hypothesis import given
from hypothesis import strategies as st

from rayguard.cluster.supervisor.job_state import LATE_S, JobClock


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
