"""Which faults trials bring: the same for the same seed, and all kinds alike."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.benchmarks.trials.plan import DRAWN, WITH_STANDBY, Fault, Size, plan

SIZE = Size()


def test_the_same_seed_plans_the_same_trials():
    """A trial that failed can be held again by its seed and number."""
    assert plan(60, 3, SIZE) == plan(60, 3, SIZE)
    assert plan(60, 3, SIZE) != plan(60, 4, SIZE)


@pytest.mark.parametrize("trials", [0, 1, 6, 20, 200, 317])
def test_every_kind_comes_equally_often(trials):
    """On each of the two pools of the driver's, but for one."""
    planned = plan(trials, 0, SIZE)
    assert [trial.number for trial in planned] == list(range(trials))
    for standby, faults in ((False, DRAWN), (True, WITH_STANDBY)):
        counts = Counter(dict.fromkeys(faults, 0))
        counts.update(t.fault for t in planned if t.standby is standby and t.fault is not Fault.KILL_OWNER)
        assert max(counts.values()) - min(counts.values()) <= 1
        assert set(counts) == set(faults)


def test_one_pool_comes_after_the_other():
    """Four engines at once would starve each other; a third has standby engines, a fifteenth loses its owner."""
    planned = plan(200, 0, SIZE)
    kinds = ["owner" if t.fault is Fault.KILL_OWNER else "standby" if t.standby else "pool" for t in planned]
    assert kinds == ["pool"] * 120 + ["standby"] * 67 + ["owner"] * 13


def test_every_trial_can_be_held():
    """Engines, questions and moments that exist."""
    for trial in plan(300, 2, SIZE):
        assert trial.target in range(SIZE.engines)
        assert set(trial.questions) <= set(range(SIZE.questions))
        assert SIZE.batch[0] <= len(trial.questions) <= SIZE.batch[1]
        assert 0 <= trial.part < 1
        assert str(trial.number) in str(trial)
