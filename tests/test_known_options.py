"""Options that nobody has: the one that was meant is named, whatever they are given to."""

from __future__ import annotations

import dataclasses
import pickle
import subprocess
import sys

import pytest

import rayguard
from rayguard import ConfigError
from rayguard.engine.settings import EngineSettings
from rayguard.memory.pressure import Thresholds
from rayguard.options import explained

WRONG = [
    (
        lambda: rayguard.GuardPolicy(standy=None),
        r"GuardPolicy knows no option 'standy'.*\(standby=\.\.\.\)\?$",
    ),
    (lambda: rayguard.PoolPolicy(max_weight_lagg=1), r"\(max_weight_lag=\.\.\.\)\?$"),
    (lambda: rayguard.MemoryPolicy(horizon=1), r"\(horizon_s=\.\.\.\)\?$"),
    (lambda: rayguard.SnapshotPolicy(every_call=1), r"\(every_calls=\.\.\.\)\?$"),
    (lambda: rayguard.Ladder(rung=()), r"\(rungs=\.\.\.\)\?$"),
    (lambda: rayguard.Weights("1", pathh="x"), r"\(path=\.\.\.\)\?$"),
    (lambda: Thresholds(sooft=0.5), r"\(soft=\.\.\.\)\?$"),
    (lambda: EngineSettings(aplied=()), r"\(applied=\.\.\.\)\?$"),
    (lambda: rayguard.RestartBudget(max_restart=1, within_s=1.0), r"\(max_restarts=\.\.\.\)\?$"),
    (
        lambda: rayguard.RestartBudget(-1),
        r"options by name.*RestartBudget\(max_restarts=\.\.\., within_s=\.\.\.\)$",
    ),
    (lambda: rayguard.RestartBudget(max_restarts=1), r"needs within_s\. Write RestartBudget\("),
    (lambda: rayguard.RestartBudget(max_restarts=-1, within_s=1.0), r"RestartBudget\.max_restarts must be 0"),
    (lambda: rayguard.GuardPolicy(zzz=1), r"Write GuardPolicy\(ladder, .*hang_busy_s\)$"),
    (lambda: dataclasses.replace(rayguard.GuardPolicy(), standy=None), r"\(standby=\.\.\.\)\?$"),
    (lambda: rayguard.guard(polcy=None), r"Did you mean guard\(policy=\.\.\.\)\?$"),
    (lambda: rayguard.method(idempotnet=True), r"\(idempotent=\.\.\.\)\?$"),
    (lambda: rayguard.object_scope(keepsteps=1), r"\(keep_steps=\.\.\.\)\?$"),
    (lambda: rayguard.serve_metrics(adress=""), r"\(address=\.\.\.\)\?$"),
    (lambda: rayguard.RolloutMixin().start_engine(weigths="/x"), r"\(weights=\.\.\.\)\?$"),
    (lambda: rayguard.RolloutMixin().start_engine("/x"), r"start_engine takes its options by name"),
    (lambda: rayguard.RolloutPool.generate(None, [], deadline=1), r"\(deadline_s=\.\.\.\)\?$"),
]


@pytest.mark.parametrize(("call", "said"), WRONG)
def test_the_option_that_was_meant_is_named_last(call, said):
    """Whoever reads the last line of a traceback knows what to write."""
    with pytest.raises(ConfigError, match=said) as caught:
        call()
    assert "\n" not in str(caught.value)


async def test_a_coroutine_function_stays_one_and_names_the_option():
    """Event loops ask what a function is before they call it."""
    with pytest.raises(ConfigError, match=r"\(deadline_s=\.\.\.\)\?$"):
        await rayguard.RolloutPool.generate_async(None, [], deadline=1)


def test_a_name_of_the_package_that_was_meant_is_named():
    """As for options; names that Python itself asks for get no guess."""
    with pytest.raises(AttributeError, match="did you mean 'RolloutPool'"):
        _ = rayguard.RoloutPool
    with pytest.raises(AttributeError, match=r"__pth__'$"):
        _ = rayguard.__pth__


def test_what_fails_within_is_not_explained_away():
    """A ``TypeError`` of the code that was called is its own."""

    @explained
    def call(x):
        return len(x)

    with pytest.raises(TypeError, match="object of type 'int'"):
        call(1)


def test_a_value_is_what_it_was():
    """Same class, same fields, same pickle; nothing but the words of a mistake changes."""
    policy = rayguard.GuardPolicy(call_retries=1)
    assert pickle.loads(pickle.dumps(policy)) == policy
    assert dataclasses.replace(policy, call_retries=2).call_retries == 2


def test_a_right_call_loads_nothing_to_explain_with():
    """What a mistake needs is loaded after a mistake."""
    code = "import rayguard, sys; rayguard.GuardPolicy(); print('difflib' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert run.stdout.strip() == "False"
