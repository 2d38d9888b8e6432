"""Whether another actor is hired for one that is dead for good: a table, and that it never spins."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayguard import errors
from rayguard.pool.replacement import Again, Enough, decide, names_of, said
from rayguard.recovery.budget import RestartBudget

BUDGET = RestartBudget(max_restarts=3, within_s=3_600.0)
DIED = frozenset({"ActorDiedError"})


@pytest.mark.parametrize(
    ("replaced_at", "wanted"),
    [
        ((), Again(0.0)),
        ((99.0,), Again(1.0)),
        ((50.0, 99.0), Again(4.0)),
        ((-3_600.0, 50.0, 99.0), Again(4.0)),
        ((1.0, 50.0, 99.0), Enough("3 replacements within 3600 s did not last")),
    ],
)
def test_the_first_comes_at_once_the_next_ones_later_and_then_none(replaced_at, wanted):
    """Those of more than an hour ago do not count."""
    assert decide(replaced_at, DIED, BUDGET, 100.0, proven=False) == wanted


@pytest.mark.parametrize(
    ("names", "proven", "again"),
    [
        ({"ConfigError"}, True, False),
        ({"ActorUnschedulableError"}, True, False),
        ({"GaveUpError"}, False, False),
        ({"GaveUpError"}, True, True),
        ({"ActorDiedError"}, False, True),
    ],
)
def test_what_would_end_another_one_too_is_no_reason_to_hire_it(names, proven, again):
    """An engine that gave up is replaced where another one has shown that the class works."""
    assert isinstance(decide((), names, BUDGET, 0.0, proven=proven), Again) == again


def test_a_budget_of_nothing_replaces_nothing():
    """As it was said."""
    none = RestartBudget(max_restarts=0, within_s=1.0)
    assert decide((), DIED, none, 0.0, proven=True) == Enough("the policy allows no replacement")


@given(st.integers(1, 6), st.floats(1, 10_000), st.lists(st.floats(0, 1_000), max_size=60))
def test_a_place_is_never_filled_anew_more_often_than_was_said(most, within_s, lives_s):
    """However fast they die, and never in a tight loop."""
    budget = RestartBudget(max_restarts=most, within_s=within_s)
    place, now, filled = (), 0.0, []
    for life_s in lives_s:
        now += life_s
        verdict = decide(place, DIED, budget, now, proven=True)
        if isinstance(verdict, Enough):
            break
        assert verdict.after_s >= (1.0 if budget.recent(place, now) else 0.0)
        now += verdict.after_s
        place = (*budget.recent(place, now), now)
        filled.append(now)
    for last in filled:
        assert sum(0 <= last - at < within_s for at in filled) <= most


class ActorDiedError(Exception):
    """Worded as Ray's is when a constructor raises."""

    actor_init_failed = True


CREATION = (
    "The actor died because of an error raised in its creation task, \x1b[36mray::A.__init__()\x1b[39m (pid=1)\n"
    '  File "a.py", line 9, in __init__\n    raise it\n    ^^^^^^^^\n'
)


def test_what_a_constructor_raised_is_read_out_of_rays_text():
    """Its type where it is ours, and its words without the frames."""
    error = ActorDiedError(
        CREATION + "rayguard.errors.GaveUpError: t cannot be kept alive\n  tried: all\nof it"
    )
    assert {"GaveUpError", "ActorDiedError"} <= names_of(error)
    plain = ActorDiedError(CREATION + "ValueError: no such model\nsecond line")
    assert "ValueError" not in names_of(plain)
    assert said(plain) == ("ActorDiedError: its constructor raised ValueError: no such model\nsecond line")
    assert said(errors.ConfigError("x")) == "ConfigError: x"
    assert said(ActorDiedError("")).startswith("ActorDiedError: ")
