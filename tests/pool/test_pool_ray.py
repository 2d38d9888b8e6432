"""Real actors on one cluster: those that Ray will not start again are replaced; a pool's owner that is killed."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

from rayguard import errors
from rayguard.pool import replacement
from rayguard.pool.pool import RolloutPool
from rayguard.pool.values.policy import PoolPolicy
from rayguard.pool.values.request import fan_out
from rayguard.recovery.budget import RestartBudget
from rayguard.recovery.incident import Outcome
from rayguard.recovery.journal import default_journal
from rayguard.testing.scripted import Script, ScriptedProvider, answer
from tests.pool.light import light

pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("default")]

PROMPTS = [[n, n + 1, 5] for n in range(24)]
IDS = [f"step7-{n}" for n in range(24)]
LONG = {"max_tokens": 300}
POLICY = PoolPolicy(progress=False, quarantine_after=100)


def until(condition, within_s=150.0):
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "it never came to that"
        threading.Event().wait(0.02)


def test_an_actor_whose_restarts_are_spent_is_replaced(cluster):
    """Ray starts it once more under its name; after that the pool hires another one. Nothing is lost.

    What is told of both deaths is what the samples say.
    """
    options = {"num_cpus": 0, "max_restarts": 1}
    with RolloutPool(light(), 0.02, behind=5, engines=1, options=options, policy=POLICY) as pool:
        pool.wait_ready(timeout_s=120)
        futures = [pool.submit(prompt, LONG) for prompt in PROMPTS[:16]]

        def all_under_way():
            """Say whether each request has tokens of this life: one that had none at the kill was not cut."""
            running = [e for e in list(pool._core.book.entries.values()) if e.engine and e.generated]
            made = [e for e in running if len(e.generated) > max(e.cuts, default=0)]
            return made and len(made) == sum(not future.done() for future in futures)

        pids = []
        for name in ("rollout-0", "rollout-0"):
            until(lambda n=name: pool.status()["engines"][n]["pid"] not in (None, *pids))
            until(all_under_way)
            pids.append(pool.status()["engines"][name]["pid"])
            os.kill(pids[-1], signal.SIGKILL)
        until(lambda: "rollout-1" in pool.status()["engines"])
        samples = [future.result(60).samples[0] for future in futures]
        for sample, prompt in zip(samples, PROMPTS[:16], strict=True):
            assert sample.token_ids == answer(fan_out("x", prompt, LONG)[0])
        assert all(sample.cuts for sample in samples)
        status = pool.status()
        assert (status["replaced"], status["lost"], list(status["engines"])) == (1, 0, ["rollout-1"])
        assert status["engines"]["rollout-1"]["pid"] not in pids
        assert "ActorDiedError" in status["engines"]["rollout-1"]["last_loss"]
        until(lambda: [i for i in default_journal().read() if i.pid == pids[1] and i.recover_s])
        first, second = [i for i in default_journal().read() if i.pid in pids]
        assert (first.requests, first.tokens_saved) == (16, sum(s.cuts[0] for s in samples))
        twice = [s.cuts[1] for s in samples if s.cuts[1:]]
        assert (second.requests, second.tokens_saved) == (len(twice), sum(twice))
        for incident in (first, second):
            assert (incident.outcome, incident.tokens_lost) == (Outcome.RECOVERED, 5)
            assert incident.resume_s >= incident.recover_s, "nobody else was there to go on"
        assert status["tokens_lost"] == 10


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


def test_an_owner_that_is_killed_loses_no_request_of_the_call_that_ray_repeats(cluster):
    """A real actor, SIGKILL in the middle: the same call goes on with what the dead process knew."""

    @cluster.remote(max_restarts=-1, max_task_retries=-1, max_concurrency=2, num_cpus=0)
    class Holder:
        def __init__(self):
            self.staff = ScriptedProvider(Script(turn_s=0.02))
            self.pool = RolloutPool.of(self.staff, engines=2, policy=PoolPolicy(progress=False))

        def generate(self, prompts, sampling, ids):
            return os.getpid(), self.pool.generate(prompts, sampling, ids=ids).samples

        def look(self):
            book = self.pool._core.book  # on its loop: what is there was written
            made = self.pool._background.call(lambda: sum(len(e.generated) for e in book.entries.values()))
            served = [name for member in self.staff.members.values() for name in member.served]
            return os.getpid(), made, served

    def get(ref):
        return cluster.get(ref, timeout=150)

    holder = Holder.remote()
    before = get(holder.generate.remote(PROMPTS[:2], {"max_tokens": 120}, ["done-0", "done-1"]))[1]
    call = holder.generate.remote(PROMPTS, {"max_tokens": 400}, IDS)
    until = time.monotonic() + 60
    pid, made, _ = get(holder.look.remote())
    while made < 1_000:
        assert time.monotonic() < until
        pid, made, _ = get(holder.look.remote())
    os.kill(pid, signal.SIGKILL)
    another, samples = get(call)
    assert another != pid
    assert [s.token_ids for s in samples] == [
        answer(fan_out(name, prompt, {"max_tokens": 400})[0])
        for name, prompt in zip(IDS, PROMPTS, strict=True)
    ]
    assert sum(s.cuts[0] for s in samples if s.cuts) >= made, "at least what was known when we looked"
    assert get(holder.generate.remote(PROMPTS[:2], {"max_tokens": 120}, ["done-0", "done-1"]))[1] == before
    assert not {"done-0", "done-1"} & set(get(holder.look.remote())[2]), "nothing was generated for them"
