"""Which calls are told as not answered, and how often."""

from __future__ import annotations

from rayguard.engine.hangs.unanswered_calls import UnansweredCalls


def course(calls, inside, times):
    return {at: due for at in times if (due := list(calls.due(inside, float(at))))}


def test_told_after_ten_seconds_and_then_ever_more_seldom():
    """Once for each tenfold of the wait: a call that waits for a day fills no log."""
    seen = course(UnansweredCalls(), {1: "rpc"}, range(2_000))
    assert seen == {10: [("rpc", 10.0)], 100: [("rpc", 100.0)], 1_000: [("rpc", 1_000.0)]}


def test_each_call_for_itself():
    """By its number: many short ones of a name are not one long one."""
    calls = UnansweredCalls()
    for at in range(100):
        assert list(calls.due({at: "is_sleeping", -1: "rpc"}, float(at))) == (
            [("rpc", float(at))] if at == 10 else []
        )


def test_what_took_long_before_may_take_as_long_again():
    """A call that waits for a trainer at each step is told once, and not in every step."""
    calls = UnansweredCalls()
    assert list(course(calls, {1: "update"}, range(30))) == [10]
    assert not course(calls, {}, [30])
    assert not course(calls, {2: "update"}, range(31, 331))
    assert list(course(calls, {2: "update", 3: "other"}, range(331, 345))) == [331, 341]


def test_nothing_is_kept_of_those_that_are_gone():
    """A long run makes millions of calls."""
    calls = UnansweredCalls()
    for at in range(1_000):
        list(calls.due({at: "rpc"}, float(at)))
    list(calls.due({}, 1_000.0))
    assert not calls._inside
    assert not calls._told_s
