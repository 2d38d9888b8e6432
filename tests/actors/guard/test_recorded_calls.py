"""Guarded calls of every kind stand in the flight recording while they run, and no longer."""

import asyncio

import pytest

from rayguard.actors.guard.guard import guard
from rayguard.process.flight import recorder
from rayguard.process.flight.reader import read_recording


@pytest.fixture
def flight(tmp_path):
    recorder.stop()
    yield recorder.start(tmp_path, every_s=3600.0)
    recorder.stop()


def running():
    flight = recorder.current()
    assert flight is not None
    return [one.name for one in read_recording(flight.path).running]


@guard
class Actor:
    def __init__(self, fail=False):
        self.seen = running()
        if fail:
            raise ValueError("init")

    def sync(self):
        return running()

    async def coro(self):
        await asyncio.sleep(0)
        return running()

    def gen(self):
        yield running()
        yield running()

    async def agen(self):
        yield running()
        yield running()

    def fails(self):
        raise ValueError("x")

    async def cancelled(self):
        raise asyncio.CancelledError

    def leaves(self):
        raise SystemExit(3)

    def outer(self):
        return running(), self.sync()


def methods():
    return {one.name: (one.begun, one.ended) for one in read_recording(recorder.current().path).methods}


async def listed(stream):
    return [item async for item in stream]


def test_each_kind_of_call_is_seen_while_it_runs(flight):
    """Sync, async and both kinds of generators, and ``__init__``."""
    actor = Actor()
    assert actor.seen == ["Actor.__init__"]
    assert actor.sync() == ["Actor.sync"]
    assert asyncio.run(actor.coro()) == ["Actor.coro"]
    assert list(actor.gen()) == [["Actor.gen"]] * 2
    assert asyncio.run(listed(actor.agen())) == [["Actor.agen"]] * 2
    assert running() == []
    assert all(counts == (1, 1) for counts in methods().values())


def test_a_call_within_a_call_is_the_newest(flight):
    """Both run."""
    assert Actor().outer() == (["Actor.outer"], ["Actor.sync", "Actor.outer"])


def test_a_call_that_fails_has_ended(flight):
    """By an error, a cancellation, or on its way out of the process."""
    actor = Actor()
    with pytest.raises(ValueError, match="x"):
        actor.fails()
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(actor.cancelled())
    with pytest.raises(SystemExit):
        actor.leaves()
    with pytest.raises(ValueError, match="init"):
        Actor(fail=True)
    stream = actor.gen()
    next(stream)
    assert running() == ["Actor.gen"]
    stream.close()
    assert running() == []
    assert methods()["Actor.fails"] == (1, 1)
    assert methods()["Actor.__init__"] == (2, 2)


def test_two_calls_at_once_are_counted_apart(flight):
    """The first to end does not end the other one."""

    async def both(actor):
        gate = asyncio.Event()

        async def wait():
            stream = actor.agen()
            await stream.__anext__()
            await gate.wait()
            await stream.aclose()

        tasks = [asyncio.create_task(wait()) for _ in range(2)]
        stream = actor.agen()
        await stream.__anext__()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        counts = [methods()["Actor.agen"]]
        await stream.aclose()
        counts.append(methods()["Actor.agen"])
        gate.set()
        await asyncio.gather(*tasks)
        return [*counts, methods()["Actor.agen"]]

    assert asyncio.run(both(Actor())) == [(3, 0), (3, 1), (3, 3)]


def test_a_broken_recorder_costs_no_call(flight, monkeypatch):
    """The caller gets the answer."""
    actor = Actor()
    monkeypatch.setattr(type(flight), "begin", lambda *_: 1 / 0)
    assert actor.outer() == ([], [])
    assert flight.failures == 2
