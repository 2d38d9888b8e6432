"""Real actors that Ray will not start again: the pool hires others, as often as was said."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

from rayguard import errors
from rayguard.actors.pool import replacement
from rayguard.actors.pool.policy import PoolPolicy
from rayguard.actors.pool.pool import RolloutPool
from rayguard.actors.pool.request import fan_out
from rayguard.recovery.budget import RestartBudget
from rayguard.testing.scripted import answer
from tests.actors.pool.light import light

pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("default")]

PROMPTS = [[n, n + 1, 5] for n in range(16)]
LONG = {"max_tokens": 300}
POLICY = PoolPolicy(progress=False, quarantine_after=100)


def until(condition, within_s=150.0):
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "it never came to that"
        threading.Event().wait(0.02)


def test_an_actor_whose_restarts_are_spent_is_replaced(cluster):
    """Ray starts it once more under its name; after that the pool hires another one. Nothing is lost."""
    with RolloutPool(
        light(), 0.02, engines=1, options={"num_cpus": 0, "max_restarts": 1}, policy=POLICY
    ) as pool:
        pool.wait_ready(timeout_s=120)
        futures = [pool.submit(prompt, LONG) for prompt in PROMPTS]
        pids = []
        for name in ("rollout-0", "rollout-0"):
            until(lambda n=name: pool.status()["engines"][n]["pid"] not in (None, *pids))
            until(lambda: any(len(e.generated) for e in list(pool._core.book.entries.values()) if e.member))
            pids.append(pool.status()["engines"][name]["pid"])
            os.kill(pids[-1], signal.SIGKILL)
        until(lambda: "rollout-1" in pool.status()["engines"])
        samples = [future.result(60).samples[0] for future in futures]
        for sample, prompt in zip(samples, PROMPTS, strict=True):
            assert sample.token_ids == answer(fan_out("x", prompt, LONG)[0])
        assert all(sample.cuts for sample in samples)
        status = pool.status()
        assert (status["replaced"], status["lost"], list(status["engines"])) == (1, 0, ["rollout-1"])
        assert status["engines"]["rollout-1"]["pid"] not in pids
        assert "ActorDiedError" in status["engines"]["rollout-1"]["last_loss"]


def test_a_constructor_that_always_raises_is_told_with_its_own_words(cluster, monkeypatch):
    """After as many tries as were said, in one error without Ray's frames."""
    monkeypatch.setattr(replacement, "_FIRST_S", 0.01)
    policy = PoolPolicy(progress=False, replace=RestartBudget(max_restarts=2, within_s=600.0))
    with RolloutPool(light(), 0.0, fit=False, engines=1, options={"num_cpus": 0}, policy=policy) as pool:
        future = pool.submit(PROMPTS[0])
        with pytest.raises(errors.GaveUpError, match="no such model") as caught:
            pool.wait_ready(timeout_s=60)
        assert future.result(5).error is pool._core.final
    assert caught.value.cause == (
        "no rollout actor is left; the last one, rollout-2, ended with ActorDiedError: its constructor raised "
        "ValueError: no such model; it is not replaced: 2 replacements within 600 s did not last"
    )
    assert caught.value.tried == ("2 other actors",)
