"""What the keeper of a standby does next: a table of cases, and what holds in all of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayguard.engine.standby.plan import FIRST_PAUSE_S, LONGEST_PAUSE_S, StandbyView, Step, next_step, pause_s

A, B = ("async_scheduling_off",), ("async_scheduling_off", "eager")
settings = st.sampled_from([None, (), A, B])
views = st.builds(
    StandbyView,
    now=st.floats(0, 1e6),
    leaving=st.booleans(),
    wanted=settings,
    has=settings,
    fit=st.booleans(),
    behind=st.booleans(),
    can_push=st.booleans(),
    not_before=st.floats(0, 1e6),
)


@pytest.mark.parametrize(
    ("view", "step"),
    [
        (StandbyView(now=0.0), Step.REST),
        (StandbyView(now=0.0, wanted=A), Step.BUILD),
        (StandbyView(now=0.0, wanted=A, leaving=True), Step.END),
        (StandbyView(now=0.0, wanted=A, not_before=1.0), Step.REST),
        (StandbyView(now=0.0, wanted=A, has=A), Step.REST),
        (StandbyView(now=0.0, wanted=A, has=A, behind=True), Step.PREPARE),
        (StandbyView(now=0.0, wanted=A, has=A, behind=True, can_push=False), Step.REST),
        (StandbyView(now=0.0, wanted=B, has=A), Step.DROP),
        (StandbyView(now=0.0, wanted=A, has=A, fit=False, not_before=9.0), Step.DROP),
        (StandbyView(now=0.0, wanted=None, has=A), Step.REST),
    ],
)
def test_one_thing_after_the_other(view, step):
    """Each situation has its step."""
    assert next_step(view)[0] is step


@given(views)
def test_there_is_never_a_second_standby_nor_one_beside_an_engine_that_is_to_be_ended(view):
    """Their memory was never counted for."""
    step, _ = next_step(view)
    assert step is not Step.BUILD or (view.has is None and not view.leaving)


@given(views)
def test_nothing_is_tried_during_a_pause_and_every_rest_ends(view):
    """What failed is left alone; what waits looks again."""
    step, rest_s = next_step(view)
    if view.not_before > view.now:
        assert step not in {Step.BUILD, Step.PREPARE}
    assert (step is Step.REST) == (rest_s > 0)
    assert rest_s <= 2.0


@given(st.integers(1, 10_000))
def test_pauses_only_grow_and_are_bounded(failures):
    """From seconds to ten minutes."""
    assert FIRST_PAUSE_S <= pause_s(failures) <= pause_s(failures + 1) <= LONGEST_PAUSE_S
