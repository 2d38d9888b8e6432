"""The schedule of faults: seeded, complete, spread over the run."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples.grpo.schedule import CALM_STEPS, SHORTEST_RUN, STAGES, plan
from rayguard.testing.injector import What


@given(st.integers(SHORTEST_RUN, 500), st.integers())
def test_every_stage_has_a_step_of_its_own_in_order(steps, seed):
    """One stage a step, none in the calm ends, in the order that the story needs."""
    faults = plan(steps, seed)
    assert [(fault.what, fault.target) for fault in faults] == [fault for stage in STAGES for fault in stage]
    at = [fault.step for fault in faults]
    assert at == sorted(at)
    assert len(set(at)) == len(STAGES)
    assert len({(fault.step, fault.target) for fault in faults}) == len(faults), "one for each rollout"
    assert at[0] >= CALM_STEPS
    assert at[-1] < steps - CALM_STEPS


def test_the_same_seed_gives_the_same_schedule():
    """A run can be repeated; another seed gives another run."""
    assert plan(40, 3) == plan(40, 3)
    assert plan(40, 3) != plan(40, 4)


def test_both_rollouts_and_every_way_to_break_are_in_it():
    """The schedule leaves nothing out."""
    assert {fault.what for fault in plan(40, 0)} == set(What)
    assert {fault.target for fault in plan(40, 0)} == {0, 1}


def test_a_rollout_is_left_in_peace_for_long_after_its_actor_died():
    """Else the run would wait for it, to hit it again: what is to be seen is that nobody waits."""
    for seed in range(20):
        faults = plan(40, seed)
        [died] = [fault for fault in faults if fault.what is What.KILL_ACTOR]
        again = [fault.step for fault in faults if fault.target == died.target and fault.step > died.step]
        assert all(step - died.step >= 10 for step in again)
        assert 40 - died.step >= 10


def test_a_run_too_short_for_the_faults_is_refused():
    """Faults in neighbouring steps could not be told apart."""
    with pytest.raises(ValueError, match="too few"):
        plan(SHORTEST_RUN - 1, 0)
