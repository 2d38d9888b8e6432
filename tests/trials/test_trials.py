"""A few random faults against a pool of real engines: nothing lost, doubled, stale or another answer."""

from __future__ import annotations

import json

import pytest

from tests.benchmarks.trials.plan import Fault, Size, plan
from tests.benchmarks.trials.run import Run
from tests.benchmarks.trials.score import ZERO, summary
from tests.engine.real import ENVIRONMENT

pytestmark = [
    pytest.mark.ray,
    pytest.mark.vllm,
    pytest.mark.timeout(3600),  # for a machine that is very busy: engines then take minutes to start
    pytest.mark.filterwarnings("default"),
]

# A seed under which four trials are of kinds that take little time: one is a death of the actor, one is a user's doing.
SEED = 1205
KINDS = [Fault.KILLING_CALL, Fault.TERM_CORE, Fault.PUSH_KILL_CORE, Fault.KILL_ACTOR]


def test_no_fault_costs_an_answer(tmp_path, monkeypatch):
    """``make trials`` in short; what is measured by it is for quiet machines."""
    for name, value in {**ENVIRONMENT, "RAY_AUTH_MODE": "disabled"}.items():
        monkeypatch.setenv(name, value)
    size = Size()
    run = Run(tmp_path, size, print)
    trials = plan(4, SEED, size)
    assert [trial.fault for trial in trials] == KINDS
    run.perform(trials, cold_starts=0)
    told = summary(run.outcomes, run.cold_s)
    print(json.dumps(told))
    assert [problem for outcome in run.outcomes for problem in outcome.problems] == []
    assert {name: told[name] for name in ZERO} == dict.fromkeys(ZERO, 0)
