"""A policy that cannot work is refused where it is written."""

from __future__ import annotations

import pickle

import pytest

from rayguard.errors import ConfigError, GaveUpError
from rayguard.recovery.budget import RestartBudget
from rayguard.recovery.policy import GuardPolicy


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
    ],
)
def test_a_policy_that_contradicts_itself_is_refused(changes, said):
    """The error names the field and what is wrong with it."""
    with pytest.raises(ConfigError, match=said):
        GuardPolicy(**changes)


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
