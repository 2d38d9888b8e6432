"""Which faults trials bring: the same for the same seed, and all kinds alike."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.benchmarks.trials.own_answer import WAYS, way
from tests.benchmarks.trials.plan import DRAWN, Fault, Place, Size, plan, plan_of

SIZE = Size()


def test_the_same_seed_plans_the_same_trials():
    """A trial that failed can be held again by its seed and number."""
    assert plan(60, 3, SIZE) == plan(60, 3, SIZE)
    assert plan(60, 3, SIZE) != plan(60, 4, SIZE)


@pytest.mark.parametrize("trials", [0, 1, 6, 20, 200, 317])
def test_every_kind_comes_equally_often(trials):
    """On each of the pools, but for one."""
    planned = plan(trials, 0, SIZE)
    assert [trial.number for trial in planned] == list(range(trials))
    for place, faults in DRAWN.items():
        counts = Counter(dict.fromkeys(faults, 0))
        counts.update(trial.fault for trial in planned if trial.place is place)
        assert max(counts.values()) - min(counts.values()) <= 1
        assert set(counts) == set(faults)


def test_every_kind_comes_several_times_in_two_hundred_and_nearly_all_in_forty():
    """So that a short run tells something of each."""
    often = Counter(trial.fault for trial in plan(200, 0, SIZE))
    assert set(often) == set(Fault)
    assert min(often.values()) >= 5
    assert len({trial.fault for trial in plan(40, 0, SIZE)}) >= len(Fault) - 2


def test_every_way_to_bring_a_fault_about_is_drawn():
    """A call may kill in several ways."""
    drawn = {(trial.fault, way(trial)) for trial in plan(2_000, 0, SIZE)}
    assert {(fault, one) for fault, ways in WAYS.items() for one in ways} <= drawn


def test_one_pool_comes_after_the_other():
    """Engines of all of them at once would starve each other."""
    places = [trial.place for trial in plan(200, 0, SIZE)]
    assert places == [place for place in Place for _ in range(places.count(place))]
    assert places.count(Place.PLAIN) == 91
    assert places.count(Place.STANDBY) == 40
    assert places.count(Place.HEIRS) == 20
    assert {places.count(place) for place in Place} == {91, 40, 20, 13, 10}


def test_trials_of_chosen_kinds_can_be_held_alone():
    """In turns, each on its own pool."""
    planned = plan_of([Fault.KILL_RANK, Fault.HUNG_CALL], 5, 0, SIZE)
    assert [trial.fault for trial in planned] == [Fault.HUNG_CALL] * 2 + [Fault.KILL_RANK] * 3
    assert planned == plan_of([Fault.KILL_RANK, Fault.HUNG_CALL], 5, 0, SIZE)


def test_every_trial_can_be_held():
    """Engines, questions and moments that exist."""
    for trial in plan(300, 2, SIZE):
        assert trial.target in range(SIZE.engines_at(trial.place))
        assert set(trial.questions) <= set(range(SIZE.questions))
        assert SIZE.batch[0] <= len(trial.questions) <= SIZE.batch[1]
        assert 0 <= trial.part < 1
        assert str(trial.number) in str(trial)


def test_the_trials_before_do_not_depend_on_how_many_come_after():
    """On the same pool: their kinds, their questions and their moments."""
    few, many = plan(30, 4, SIZE), plan(300, 4, SIZE)
    here = [trial for trial in few if trial.place is Place.PLAIN]
    assert here == list(many[: len(here)])
