"""What may be ended, what is leaked, and what to do about a store."""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayguard.objects import reaper
from rayguard.objects.ended import ScopeEndedError
from rayguard.objects.leaks import growing, outlived
from rayguard.objects.lease import Lease
from rayguard.objects.ledger import Ledger
from rayguard.objects.proof import REASONS, Grip, Held, objection
from rayguard.objects.store import StoreAction, StoreState, advise

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


def ledger_of(steps, *, read=(), drop=()):
    ledger = Ledger()
    for step in range(steps):
        ledger.made(f"o{step}", "train.py:3 in step", step, opened=None)
        if step in drop:
            ledger.forget([f"o{step - 2}"])
        if step in read:
            ledger.read([f"o{one}" for one in range(steps)], step)
        ledger.census(step)
    return ledger


def test_a_line_that_leaves_more_each_step_unread_is_a_leak():
    """With its line, its count and since when."""
    (leak,) = growing(ledger_of(6), step=5, steps=3)
    assert leak.object_ids == ("o0", "o1", "o2"), "what is younger than three steps may yet be read"
    assert leak.since_step == 0
    assert "3 objects made at train.py:3 in step since step 0 grow step by step" in leak.sentence


def test_what_was_read_lately_is_no_leak():
    """A replay buffer that is read."""
    assert growing(ledger_of(6, read=(5,)), step=5, steps=3) == []


def test_a_buffer_that_lets_go_of_its_oldest_is_no_leak():
    """It does not grow."""
    assert growing(ledger_of(9, drop=range(4, 9)), step=8, steps=3) == []


def test_what_outlived_its_scope_is_told_by_line_largest_first():
    """Bytes first, then count."""
    leases = [
        Lease(object_id="a", site="small", step=4, size_bytes=1),
        Lease(object_id="b", site="large", step=6, size_bytes=2_000_000),
        Lease(object_id="c", site="large", step=5),
    ]
    large, small = outlived(leases)
    assert (large.site, large.count, large.since_step, small.site) == ("large", 2, 5, "small")
    assert large.sentence == "2 objects (2.0 MB) made at large since step 5 outlived their object_scope"


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


GB = 10**9


@pytest.mark.parametrize(
    ("state", "action"),
    [
        ({"used_bytes": GB}, StoreAction.NONE),
        ({"used_bytes": 8 * GB}, StoreAction.LOWER_CONCURRENCY),
        ({"used_bytes": GB, "spilled_bytes": 5 * GB, "spilled_before_bytes": 5 * GB}, StoreAction.NONE),
        ({"used_bytes": 8 * GB, "spilled_bytes": GB}, StoreAction.MORE_STORE),
        ({"used_bytes": 8 * GB, "spilled_bytes": GB, "disk_free_bytes": GB}, StoreAction.LOWER_CONCURRENCY),
        ({"used_bytes": 6 * GB, "fallback_bytes": GB}, StoreAction.MORE_STORE),
        ({"used_bytes": GB, "limit_bytes": 0}, StoreAction.NONE),
    ],
)
def test_a_store_in_trouble_gets_advice(state, action):
    """And a healthy one none."""
    advice = advise(StoreState(**{"limit_bytes": 10 * GB, **state}))
    assert advice.action is action
    assert bool(advice.message) == bool(advice.hint) == (action is not StoreAction.NONE)


def test_known_leaks_come_before_any_other_advice():
    """The largest is named."""
    leaks = outlived([Lease(object_id="a", site="train.py:3", step=1, size_bytes=GB)])
    advice = advise(StoreState(used_bytes=8 * GB, limit_bytes=10 * GB), leaks)
    assert advice.action is StoreAction.END_LEAKS
    assert "1000 MB of it are leaked: 1 objects (1000.0 MB) made at train.py:3" in advice.message
