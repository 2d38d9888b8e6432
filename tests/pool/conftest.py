"""A pool of scripted actors, and what they must answer."""

import asyncio
import time

import pytest

from rayguard.pool.pool import RolloutPool
from rayguard.pool.values.policy import PoolPolicy
from rayguard.pool.values.request import fan_out
from rayguard.testing.scripted import Script, ScriptedProvider, answer
from tests.pool.book_invariants import check


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """A cluster of one node whose workers write to a journal of their own."""
    import ray

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "disabled")
        patch.setenv("RAYGUARD_HOME", str(tmp_path_factory.mktemp("home")))
        ray.init(
            address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR"
        )
        try:
            yield ray
        finally:
            ray.shutdown()


class Stage:
    """A pool, its scripted staff, and the oracle."""

    def __init__(self, engines, policy, script):
        self.script = script
        self.staff = ScriptedProvider(script)
        self.pool = RolloutPool.of(self.staff, engines=engines, policy=policy)
        self.pool.wait_ready(timeout_s=10)

    @property
    def core(self):
        return self.pool._core

    @property
    def members(self):
        return self.staff.members

    def on_loop(self, function):
        return self.pool._background.call(function)

    def kill(self, name, **how):
        self.on_loop(lambda: self.staff.kill(name, **how))

    def until(self, condition, within_s=10.0):
        deadline = time.monotonic() + within_s
        while not self.on_loop(condition):
            assert time.monotonic() < deadline, "it never came to that"
            asyncio.run(asyncio.sleep(0.005))

    def working(self, name):
        """Wait until ``name`` has made tokens of what runs on it now, and the pool has heard of them."""
        self.until(lambda: any(len(e.generated) for e in self.core.book.slots[name].running.values()))

    def right(self, batch, prompts, sampling=None, weights=""):
        """Assert that every prompt got what an undisturbed engine says."""
        assert len(batch) == len(prompts)
        for generation, prompt in zip(batch, prompts, strict=True):
            wanted = [answer(r, weights) for r in fan_out(generation.id, prompt, sampling or {})]
            assert [s.token_ids for s in generation.samples] == wanted


@pytest.fixture
def stage():
    """Make pools; each is closed, and its book is checked, at the end."""
    made = []

    def make(engines=2, policy=None, **script):
        one = Stage(engines, policy or PoolPolicy(progress=False), Script(**script))
        made.append(one)
        return one

    yield make
    for one in made:
        one.pool.close()
        check(one.core.book)
