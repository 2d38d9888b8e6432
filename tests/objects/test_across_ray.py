"""A scope reaches the actors that were called in it, and the actors that were made in it. Real Ray."""

import os
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from rayguard.objects.holdings import HOLDINGS
from rayguard.objects.scope import object_scope
from rayguard.objects.scope_ended_error import ScopeEndedError
from rayguard.objects.watch import leaks

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]


class Learner:
    """Leaks one object a call; keeps the latest, one for good, and what it is lent."""

    def __init__(self):
        self.leak, self.lent, self.results = [], [], []
        self.latest = self.once = None

    def hello(self):
        """Make nothing."""

    def step(self, number, lent=None):
        import ray

        from rayguard.objects import reaper

        reaper._SHARE = 1e9
        if self.once is None:
            self.once = ray.put("once")
        self.latest = ray.put(number)
        self.leak.append(ray.put(np.full(50_000, number)))
        if lent is not None:
            self.lent.append(lent[0])
        return number

    def own_step(self, number):
        """Made outside of any scope of the caller."""
        import ray

        self.results.append(ray.put(number))

    def readable(self):
        import ray

        def reads(ref):
            try:
                ray.get(ref, timeout=30)
            except ScopeEndedError:
                return False
            return True

        named = {"latest": [self.latest], "once": [self.once], "leak": self.leak, "lent": self.lent}
        return {
            name: [reads(ref) for ref in refs] for name, refs in {**named, "results": self.results}.items()
        }


class AsyncLearner(Learner):
    """The same in coroutines: Ray gives what they put no id that tells the call."""

    async def step(self, number, lent=None):
        return Learner.step(self, number, lent)

    async def own_step(self, number):
        Learner.own_step(self, number)

    async def readable(self):
        return Learner.readable(self)


@pytest.mark.parametrize("kind", [Learner, AsyncLearner])
def test_what_actors_made_in_a_step_ends_with_it_and_nothing_else_does(fresh, kind):
    """The leak ends; the latest, the singleton, what was lent and what other calls made stay."""
    learner = fresh.remote(num_cpus=0)(kind).remote()
    cache = []
    # Ray keeps no order of an async actor's calls: introduced beforehand, it notes what the first step makes.
    with object_scope(0) as scope:
        fresh.get(learner.hello.remote())
    assert scope.settle(60)
    for number in range(1, 7):
        with object_scope(number) as scope:
            cache.append(fresh.put(number))
            assert fresh.get(learner.step.remote(number, [cache[-1]])) == number
        fresh.get(learner.own_step.remote(number))
        assert scope.settle(60)
    found = fresh.get(learner.readable.remote())
    assert found == {
        "latest": [True],
        "once": [True],
        "leak": [False] * 5 + [True],
        "lent": [True] * 6,
        "results": [True] * 6,
    }
    with pytest.raises(ScopeEndedError):
        fresh.get(cache[0])


def test_across_false_leaves_actors_alone(fresh):
    """They hear nothing."""
    learner = fresh.remote(num_cpus=0)(Learner).remote()
    for number in range(3):
        with object_scope(number, keep_steps=0, across=False) as scope:
            fresh.get(learner.step.remote(number))
        assert scope.settle(30)
    assert fresh.get(learner.readable.remote())["leak"] == [True] * 3


def test_an_actor_that_died_disturbs_nobody(fresh):
    """Neither the scope's end nor the next one."""
    learner, other = (fresh.remote(num_cpus=0)(Learner).remote() for _ in range(2))
    with object_scope(0):
        fresh.get([learner.step.remote(0), other.step.remote(0)])
        fresh.kill(learner)
    with object_scope(1) as scope:
        fresh.get(other.step.remote(1))
    scope.settle(60)
    with object_scope(2) as scope:
        fresh.get(other.step.remote(2))
    scope.settle(60)
    assert fresh.get(other.readable.remote())["leak"] == [False, False, True]


class Worker:
    def pid(self):
        return os.getpid()


def reader(ray, handle):
    return lambda: ray.get(handle.pid.remote())


def gone(pid, deadline_s=60.0):
    until, pause = time.monotonic() + deadline_s, threading.Event()
    while Path(f"/proc/{pid}").exists() and time.monotonic() < until:
        pause.wait(0.1)
    return not Path(f"/proc/{pid}").exists()


def test_handles_that_leak_step_by_step_are_let_go_and_their_actors_end(fresh):
    """But not the newest, one made once, one with a name, nor one that code holds."""
    worker = fresh.remote(num_cpus=0)(Worker)
    pool, pids, once, named, held = [], [], [], [], []
    before = HOLDINGS.totals.handles_ended
    for number in range(3):
        with object_scope(number):
            pool.append(worker.remote())
            pids.append(fresh.get(pool[-1].pid.remote()))
            if not once:
                once.append(worker.remote())
            named.append(worker.options(name=f"worker-{number}").remote())
            held.append(reader(fresh, worker.remote()))
    assert HOLDINGS.totals.handles_ended - before == 2
    assert gone(pids[0])
    assert gone(pids[1])
    with pytest.raises(ScopeEndedError, match="test_across_ray"):
        pool[0].pid.remote()
    assert fresh.get(pool[2].pid.remote()) == pids[2]
    alive = [*once, *named]
    assert len(set(fresh.get([one.pid.remote() for one in alive]))) == 4
    assert len({read() for read in held}) == 3
    found = [leak for leak in leaks() if leak.what == "actors"]
    assert any(leak.count == 3 for leak in found), "what code holds is reported"
