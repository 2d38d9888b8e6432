"""``@object_scope`` on functions and methods of all four kinds, on real Ray."""

import asyncio

import pytest

import rayguard
from rayguard.objects.holdings import CURRENT
from rayguard.objects.scope import object_scope
from rayguard.objects.scope_ended_error import ScopeEndedError

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]


def ended(ray, ref):
    """Say whether ``ref`` was ended."""
    try:
        ray.get(ref, timeout=30)
    except ScopeEndedError:
        return True
    return False


def test_what_a_scoped_function_gives_away_is_kept_or_ends_with_the_scope_around_it(fresh):
    """Its answer is meant to be read."""
    leak = []

    @rayguard.object_scope(keep_steps=0)
    def step(number):
        leak.append(fresh.put("left"))
        return {"a": [fresh.put(number)]}

    alone = step(4)
    assert fresh.get(alone["a"][0]) == 4
    with object_scope(0, keep_steps=0):
        given = step(5)
        assert fresh.get(given["a"][0]) == 5
    assert ended(fresh, given["a"][0])
    assert fresh.get(alone["a"][0]) == 4
    assert all(ended(fresh, ref) for ref in leak)


class Steps:
    """All four kinds of method."""

    def __init__(self, ray):
        self.ray, self.leak, self.seen, self.global_step = ray, [], [], 6

    def put(self, value):
        self.seen.append(CURRENT.get().opened.step if CURRENT.get() is not None else None)
        self.leak.append(self.ray.put(value))
        return self.ray.put(value)

    @rayguard.object_scope(keep_steps=0)
    def plain(self, step):
        return self.put(step)

    @rayguard.object_scope(keep_steps=0)
    async def coroutine(self, step=0):
        await asyncio.sleep(0)
        return self.put(step)

    @rayguard.object_scope(keep_steps=0)
    def generator(self):
        got = yield self.put("one")
        yield self.put(got)

    @rayguard.object_scope(keep_steps=0)
    async def async_generator(self, *, iteration):
        yield self.put("one")
        await asyncio.sleep(0)
        yield self.put("two")


def test_functions_of_all_four_kinds_can_be_scoped(fresh):
    """They stay what they are; the step comes from the argument or the attribute."""
    steps = Steps(fresh)
    assert fresh.get(steps.plain(3)) == 3

    async def both():
        one = await steps.coroutine(step=4)
        return one, [ref async for ref in steps.async_generator(iteration=5)]

    one, two = asyncio.run(both())
    running = steps.generator()
    three = [next(running)]
    assert CURRENT.get() is None, "between its turns a generator's scope is nobody's"
    three.append(running.send("sent"))
    assert [fresh.get(ref) for ref in steps.leak[-2:]] == ["one", "sent"]
    running.close()
    assert [fresh.get(ref) for ref in [one, *two, *three]] == [4, "one", "two", "one", "sent"]
    assert steps.seen == [3, 4, 5, 5, 6, 6]
    assert all(ended(fresh, ref) for ref in steps.leak)
    assert Steps.plain.__name__ == "plain"
    assert asyncio.iscoroutinefunction(Steps.coroutine)


class Scoped:
    """An actor whose own method is a scope."""

    def __init__(self):
        self.leak, self.steps = [], 0

    @rayguard.object_scope
    def step(self, number):
        import ray

        self.leak.append(ray.put(number))
        return [ray.put(number)]

    def alive(self):
        import ray

        return [not ended(ray, ref) for ref in self.leak]


def test_an_actor_may_scope_its_own_methods(fresh):
    """Without any scope in the driver; what a method returns is the caller's."""
    actor = fresh.remote(num_cpus=0)(Scoped).remote()
    given = [fresh.get(actor.step.remote(number))[0] for number in range(2)]
    assert fresh.get(given) == [0, 1]
    assert fresh.get(actor.alive.remote()) == [False, True]
