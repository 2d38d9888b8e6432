"""``object_scope`` on real Ray: what ends, when, and what a reader of an ended reference gets."""

import asyncio
import gc
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from rayguard.errors import ConfigError
from rayguard.harmless import errors
from rayguard.objects.holdings import CURRENT, HOLDINGS
from rayguard.objects.reaper import Tombstones
from rayguard.objects.scope import object_scope
from rayguard.objects.scope_ended_error import ScopeEndedError
from rayguard.ray_internals.object_refs import core_worker, counts

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("own_heap"), pytest.mark.timeout(300)]

MB = 1_000_000


def ended(ray, ref):
    """Say whether ``ref`` was ended."""
    try:
        ray.get(ref, timeout=30)
    except ScopeEndedError:
        return True
    return False


def used_bytes(ray):
    """Return what the object store of this node holds."""
    from ray._private.internal_api import get_memory_info_reply, get_state_from_address

    state = get_state_from_address(ray.get_runtime_context().gcs_address)
    return get_memory_info_reply(state).store_stats.object_store_bytes_used


def settled_bytes(ray, at_most, deadline_s=30.0):
    """Wait until the store holds ``at_most``: Ray frees in batches, once a second. Return what it holds."""
    until, pause = time.monotonic() + deadline_s, threading.Event()
    while (used := used_bytes(ray)) > at_most and time.monotonic() < until:
        pause.wait(0.2)
    return used


def test_a_step_that_leaks_leaves_the_store_as_it_was(fresh):
    """Fifty steps, a megabyte each: with a scope the store stays flat."""
    cache, early = [], 0
    for step in range(50):
        with object_scope(step):
            cache.append(fresh.put(np.zeros(MB, dtype=np.uint8)))
        if step == 5:
            early = settled_bytes(fresh, 3 * MB)
    assert early >= MB
    assert settled_bytes(fresh, 1.05 * early) <= 1.05 * early
    assert [ended(fresh, ref) for ref in cache] == [True] * 49 + [False], "the newest of a line stays"
    assert HOLDINGS.totals.ended >= 49


def test_without_a_scope_the_same_step_fills_the_store(fresh):
    """What the scope is there for: the test before can fail."""
    before = used_bytes(fresh)
    cache = [fresh.put(np.zeros(MB, dtype=np.uint8)) for _ in range(20)]
    assert used_bytes(fresh) - before >= 19 * MB
    del cache


async def reads(ref):
    return await ref


def test_a_reader_of_an_ended_reference_gets_one_clear_error_by_every_way(fresh):
    """Never a hang, never a wrong value; and the store's counts are as if the user had dropped it."""
    first = fresh.remote(num_cpus=0)(lambda value: value)
    with object_scope(3, keep_steps=0) as scope:
        cache = [fresh.put(7), first.remote(8)]
        fresh.get(cache)
        ids = [ref.hex() for ref in cache]
    assert set(scope.ended.ended) == set(ids)
    with pytest.raises(
        ScopeEndedError, match=r"test_scope_ray.py:\d+ in .* made ended with its object_scope"
    ) as error:
        fresh.get(cache[0])
    assert "keep(ref)" in str(error.value)
    with pytest.raises(ScopeEndedError):
        fresh.get(cache)
    with pytest.raises(ScopeEndedError):
        asyncio.run(reads(cache[1]))
    with pytest.raises(ScopeEndedError):
        fresh.get(first.remote(cache[0]))
    assert fresh.wait(cache[:1], timeout=30)[1] == []
    assert not set(ids) & set(counts(core_worker()))


def test_ending_touches_no_count_twice(fresh):
    """Ray logs it when a count is taken down too far; the references go their usual way afterwards."""
    gc.collect()
    before = complaints(fresh)
    with object_scope(0, keep_steps=0):
        cache = [fresh.put(number) for number in range(50)]
    assert all(ended(fresh, ref) for ref in cache)
    del cache
    gc.collect()
    assert complaints(fresh) == before


def test_a_new_cluster_in_the_same_process_loses_nothing(fresh):
    """Ids are given out again: what is left of the cluster before must not take down their counts."""
    stones = Tombstones()
    old = stones.of(core_worker(), "line").hex()
    stones._core = object()  # as it is when Ray was started anew
    stones.of(core_worker(), "line")
    gc.collect()
    assert old in counts(core_worker())


def complaints(ray):
    """Return how often Ray complained about a count that was taken down too far."""
    logs = Path(ray._private.worker.global_worker.node.get_logs_dir_path())
    files = logs.glob("python-core-*.log")
    return sum(path.read_text(errors="replace").count("decrease ref count") for path in files)


def test_an_exception_inside_ends_the_scope_too(fresh):
    """And goes on to the user as it was."""
    cache = []
    with pytest.raises(ZeroDivisionError), object_scope(0, keep_steps=0):
        cache.append(fresh.put(1))
        _ = 1 // 0
    assert ended(fresh, cache[0])
    assert CURRENT.get() is None


def test_a_result_in_the_making_is_left_alone_until_it_is_there(fresh):
    """Nobody could have read it; the next end takes it."""
    go = fresh.put("never used")
    slow = fresh.remote(num_cpus=0, max_concurrency=2)(Gate).remote()
    with object_scope(0, keep_steps=0) as scope:
        pending = [slow.wait.remote()]
    assert scope.ended.ended == ()
    assert dict(scope.ended.waiting) == {"the task that makes it has not finished": 1}
    fresh.get(slow.open.remote())
    assert fresh.get(pending[0]) == "open"
    with object_scope(1, keep_steps=0):
        pass
    assert ended(fresh, pending[0])
    del go


class Gate:
    def __init__(self):
        self.event = threading.Event()

    def wait(self):
        self.event.wait(60)
        return "open"

    def open(self):
        self.event.set()


def test_an_argument_in_flight_is_left_alone(fresh):
    """The task gets what it was called with."""
    gate = fresh.remote(num_cpus=0)(Gate).remote()
    blocked, first = (
        gate.wait.options(name="x").remote(),
        fresh.remote(num_cpus=0)(lambda _gate, value: value),
    )
    with object_scope(0, keep_steps=0) as scope:
        cache = [fresh.put(5)]
        answer = first.remote(blocked, cache[0])
    assert scope.ended.ended == ()
    assert dict(scope.ended.waiting)["a task in flight has it as an argument"] == 1
    fresh.kill(gate)
    with pytest.raises(fresh.exceptions.RayError):
        fresh.get(answer)


def test_nested_scopes_end_what_each_made(fresh):
    """The inner one first; what it keeps is nobody's."""
    outer_cache, inner_cache = [], []
    with object_scope(1, keep_steps=0):
        outer_cache.append(fresh.put("outer"))
        with object_scope(1, keep_steps=0) as inner:
            inner_cache.append(fresh.put("inner"))
            inner_cache.append(inner.keep(fresh.put("kept")))
        assert ended(fresh, inner_cache[0])
        assert fresh.get(outer_cache[0]) == "outer"
        outer_cache.append(fresh.put("later"))
    assert [ended(fresh, ref) for ref in outer_cache] == [True, True]
    assert fresh.get(inner_cache[1]) == "kept"


def test_a_thread_has_a_scope_of_its_own(fresh):
    """What one makes, the other's end leaves alone."""
    caches = [Holder(), Holder()]
    barrier = threading.Barrier(2, timeout=60)

    def work(name):
        with object_scope(name, keep_steps=0):
            caches[name].cache["refs"].append(fresh.put(name))
            barrier.wait()
        barrier.wait()

    with object_scope(0, keep_steps=0):
        thread = threading.Thread(target=work, args=(0,))
        thread.start()
        caches[1].cache["refs"].append(fresh.put(1))
        barrier.wait()
        barrier.wait()
        thread.join()
        assert ended(fresh, caches[0].cache["refs"][0])
        assert fresh.get(caches[1].cache["refs"][0]) == 1
    assert ended(fresh, caches[1].cache["refs"][0])


def test_an_asyncio_task_has_a_scope_of_its_own(fresh):
    """What one makes, the end of another's leaves alone."""
    caches = [Holder() for _ in range(4)]

    async def task(name, mine, other):
        with object_scope(name, keep_steps=0):
            caches[name].cache["refs"].append(fresh.put(name))
            mine.set()
            await other.wait()
        return [ended(fresh, caches[2].cache["refs"][0]), ended(fresh, caches[3].cache["refs"][0])]

    async def both():
        two, three, hold = asyncio.Event(), asyncio.Event(), asyncio.Event()
        one = asyncio.create_task(task(2, two, three))
        another = asyncio.create_task(task(3, three, hold))
        assert await one == [True, False]
        hold.set()
        assert await another == [True, True]

    asyncio.run(both())


def test_what_ray_and_its_libraries_make_for_themselves_is_not_watched(fresh):
    """Only lines of user code count as makers."""
    from ray.util.actor_pool import ActorPool

    actor = fresh.remote(num_cpus=0)(Gate).remote()
    with object_scope(0, keep_steps=0, across=False) as scope:
        pool = ActorPool([actor])
        pool.submit(lambda one, _value: one.open.remote(), 1)
        mine = [fresh.put(1)]
    assert len(scope.ended.ended) == 1
    assert pool.get_next(timeout=120) is None
    assert ended(fresh, mine[0])


def test_short_lived_objects_do_not_fill_the_ledger(fresh):
    """A long step that makes and drops many: the ledger follows what is alive."""
    with object_scope(0):
        for number in range(12_000):
            fresh.put(number)
        assert len(HOLDINGS.objects) <= 4200


class Holder:
    def __init__(self):
        self.cache = {"refs": []}


def test_nonsense_is_refused():
    """Before anything runs."""
    for arguments in ({"step": -1}, {"step": 1.5}, {"step": "3"}):
        with pytest.raises(ConfigError):
            object_scope(arguments["step"])
    with pytest.raises(ConfigError):
        object_scope(1, keep_steps=-1)


def test_an_error_of_our_own_is_counted_and_reaches_nobody(fresh, monkeypatch):
    """Promise: never worse."""
    before = errors.copy()
    monkeypatch.setattr("rayguard.objects.reaper.refresh", lambda *_, **__: 1 // 0)
    with object_scope(0) as scope:
        ref = fresh.put(1)
    assert fresh.get(ref) == 1
    assert scope.ended.ended == ()
    assert errors - before == {"object_scope": 1}
    errors.subtract({"object_scope": 1})
