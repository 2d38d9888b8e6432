"""What may be ended, and what is leaked."""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayguard.objects import reaper
from rayguard.objects.leaks import by_site
from rayguard.objects.ledger import Lease
from rayguard.objects.proof import REASONS, Grip, Held, objection
from rayguard.objects.scope_ended_error import ScopeEndedError

PROVED = {"object_id": "a", "copies": 1, "grips": (Grip.DATA,), "local": 1}


def test_what_only_data_holds_may_be_ended():
    """The one case in which nothing speaks against it."""
    assert objection(Held(**PROVED)) == ""


@pytest.mark.parametrize(
    "change",
    [
        {"submitted": 1},
        {"ready": False},
        {"plain": False},
        {"copies": 0},
        {"copies": 2},
        {"local": 2},
        {"grips": ()},
        *({"grips": (Grip.DATA, grip)} for grip in REASONS),
    ],
)
def test_any_doubt_is_an_objection(change):
    """With its reason in words."""
    assert objection(Held(**{**PROVED, **change}))


@given(
    st.builds(
        Held,
        object_id=st.just("a"),
        copies=st.integers(0, 3),
        grips=st.lists(st.sampled_from(Grip)).map(tuple),
        local=st.integers(0, 3),
        submitted=st.integers(0, 2),
        ready=st.booleans(),
        plain=st.booleans(),
    )
)
def test_nothing_is_ended_unless_all_of_it_is_proved(held):
    """Whatever is found out about a reference."""
    if objection(held) == "":
        assert held.copies == held.local > 0
        assert set(held.grips) == {Grip.DATA}
        assert held.ready
        assert held.plain
        assert not held.submitted


def test_what_outlived_its_scope_is_told_by_line_largest_first():
    """By count."""
    leases = [
        Lease(object_id="a", site="small", step=4),
        Lease(object_id="b", site="large", step=6),
        Lease(object_id="c", site="large", step=5),
    ]
    large, small = by_site(leases)
    assert (large.site, large.count, large.since_step, small.site) == ("large", 2, 5, "small")
    assert large.sentence == "2 objects made at large since step 5 outlived their object_scope"


def test_the_error_says_where_and_what_to_do_and_crosses_processes():
    """All fields come back."""
    error = pickle.loads(pickle.dumps(ScopeEndedError("train.py:3 in step", 4)))
    assert (error.site, error.step) == ("train.py:3 in step", 4)
    assert "train.py:3 in step made ended with its object_scope of step 4" in str(error)
    assert "keep(ref)" in str(error)


def test_searching_takes_a_share_of_time_and_no_more(monkeypatch):
    """A burst at once, then a twentieth; a very long search is paid back."""
    now = [100.0]
    monkeypatch.setattr("rayguard.objects.reaper.time.monotonic", lambda: now[0])
    duty = reaper._Duty()
    searches = 0
    for _ in range(2000):
        now[0] += 0.01
        if duty.allows():
            searches += 1
            duty.took(0.1)
    assert searches * 0.1 <= 1.0 + 20 * 0.05 + 0.2
    assert searches >= 18
    duty.took(5.0)
    now[0] += 60.0
    assert not duty.allows()
    now[0] += 60.0
    assert duty.allows()
