"""A policy that cannot work is refused where it is written."""

from __future__ import annotations

import pickle

import pytest

from rayguard.errors import ConfigError, GaveUpError
from rayguard.recovery.budget import RestartBudget
from rayguard.recovery.policy import GuardPolicy, SnapshotPolicy


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"build_deadline_s": 0}, "build_deadline_s"),
        ({"weights_deadline_s": -1}, "weights_deadline_s"),
        ({"call_retries": -1}, "call_retries"),
        ({"quarantine_after": 0}, "quarantine_after"),
        ({"quarantine_after": 9}, "never be reached"),
        ({"probation_s": 0}, "probation_s"),
        ({"hang_stopped_s": 20.0}, "hang_stopped_s <= hang_idle_s"),
        ({"standby": True}, "'process', 'engine' or None"),
        ({"snapshot": 3}, "a rayguard.SnapshotPolicy, got 3"),
    ],
)
def test_a_policy_that_contradicts_itself_is_refused(changes, said):
    """The error names the field and what is wrong with it."""
    with pytest.raises(ConfigError, match=said):
        GuardPolicy(**changes)


@pytest.mark.parametrize(
    "values",
    [{"every_calls": 0}, {"every_s": -1.0}, {"every_s": float("inf")}, {"every_s": float("nan")}],
    ids=str,
)
def test_a_snapshot_that_is_never_due_is_refused(values):
    """The error names the field."""
    with pytest.raises(ConfigError, match=f"SnapshotPolicy.{next(iter(values))} must be"):
        SnapshotPolicy(**values)


def test_a_snapshot_is_due_when_both_calls_and_seconds_have_passed():
    """By default after each call."""
    assert SnapshotPolicy().due(1, 0.0)
    both = SnapshotPolicy(every_calls=3, every_s=10.0)
    assert [both.due(*since) for since in ((2, 99.0), (99, 9.9), (3, 10.0))] == [False, False, True]


@pytest.mark.parametrize(
    "values", [{"max_restarts": -1, "within_s": 1.0}, {"max_restarts": 1, "within_s": 0}]
)
def test_a_budget_that_means_nothing_is_refused(values):
    """Negative counts and empty windows are mistakes."""
    with pytest.raises(ConfigError):
        RestartBudget(**values)


def test_the_final_error_crosses_processes_whole():
    """Every field survives pickling, and the text tells cause, tries and advice."""
    error = pickle.loads(pickle.dumps(GaveUpError("Rollout", "boom", ("restart_engine",), "lower the batch")))
    assert (error.target, error.cause, error.tried, error.advice) == (
        "Rollout",
        "boom",
        ("restart_engine",),
        "lower the batch",
    )
    assert "boom" in str(error)
    assert "restart_engine" in str(error)
    assert "lower the batch" in str(error)
