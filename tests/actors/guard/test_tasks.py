"""Guarding a function, without Ray: what comes back, what is refused, and what its process is watched by."""

import inspect
import pickle

import pytest
import ray
import ray.cloudpickle

import rayguard
from rayguard.actors.guard import restarts, tasks
from rayguard.actors.guard.guard import guard
from rayguard.actors.life import current_life, incidents
from rayguard.actors.life.incarnation import Incarnation
from rayguard.actors.mark import Guarding
from rayguard.actors.memory import call_boundary, memory_guard, relief_actions
from rayguard.actors.methods import MARK
from rayguard.errors import ConfigError
from rayguard.memory.reading import MemorySample, Quantity, Reading
from rayguard.process.flight import recorder
from rayguard.recovery.incident import incident_of
from rayguard.recovery.journal import Journal
from rayguard.recovery.policy import GuardPolicy
from rayguard.recovery.tally import TALLY

MIB = 1 << 20


@pytest.fixture(autouse=True)
def apart(monkeypatch, tmp_path):
    """A journal and a process state of the test's own."""
    monkeypatch.setenv("RAYGUARD_HOME", str(tmp_path))
    monkeypatch.setattr(restarts, "hands", restarts.LifeHands())
    monkeypatch.setattr(current_life, "state", current_life.LifeState(Incarnation()))
    monkeypatch.setattr(incidents, "_last_written", {})
    monkeypatch.setattr(call_boundary, "watch", None)
    yield
    recorder.stop()
    if call_boundary.watch is not None:
        call_boundary.watch.close()


def add(left: int, *, right: int = 1) -> int:
    """Add."""
    return left + right


def count(number):
    """Count, and say at the end that it is over."""
    yield from range(number)
    return "over"


add.tagged = "kept"


def test_a_guarded_function_is_one_of_the_same_kind():
    """Ray reads signature and kind; the user's attributes stay."""
    plain, stream = guard(add), guard(idempotent=False)(count)
    assert (plain(1), plain(1, right=4)) == (2, 5)
    assert inspect.signature(plain) == inspect.signature(add)
    assert (plain.__name__, plain.__doc__, plain.tagged) == ("add", "Add.", "kept")
    assert inspect.isgeneratorfunction(stream)
    assert list(stream(3)) == [0, 1, 2]
    ended = stream(0)
    with pytest.raises(StopIteration) as stop:
        next(ended)
    assert stop.value.value == "over"


def test_a_task_that_raises_gives_its_own_error_with_an_incident(tmp_path):
    """As an actor's method does."""

    @guard
    def bad():
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine") as caught:
        bad()
    assert incident_of(caught.value).target == "bad.task"
    [told] = Journal(tmp_path).read()
    assert told.id == incident_of(caught.value).id


def test_outside_of_ray_a_guarded_function_watches_nothing():
    """Called as it stands, in a driver or a test."""
    assert guard(add)(1) == 2
    assert call_boundary.watch is None
    assert recorder.current() is None


def test_it_goes_to_a_worker_by_value():
    """With its policy; nothing in the wrappers may hold a lock."""
    data = ray.cloudpickle.dumps(guard(idempotent=False)(lambda number: number + 1))
    assert b"Tally" not in data
    assert pickle.loads(data)(2) == 3


class Owner:
    def method(self):
        return 1


async def coroutine():
    return 1


async def stream():
    yield 1


REFUSED = {
    "coroutine": (lambda: guard(coroutine), "an async function: Ray runs none as a task"),
    "async generator": (lambda: guard(stream), "an async function: Ray runs none as a task"),
    "method": (lambda: guard(Owner.method), "put it on the class Owner"),
    "twice": (lambda: guard(guard(add)), "guarded twice"),
    "above": (lambda: guard(ray.remote(add)), "put it below @ray.remote"),
    "step": (lambda: guard(memory=rayguard.MemoryPolicy(step="run"))(add), "leave it away"),
    "built in": (lambda: guard(len), "no class"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_guarded_is_refused_where_it_is_written(case):
    """Not by the worker, later."""
    write, words = REFUSED[case]
    with pytest.raises(ConfigError, match=words):
        write()


# -- the watch of a process that runs one task after the other


class Growing:
    """Probes that see private memory grow by 40 MiB a look, ten seconds apart."""

    def __init__(self):
        self.at, self.used = 0.0, 100 * MIB
        self.closed = False

    def quick(self, step, *, node):
        self.at, self.used = self.at + 10.0, self.used + 40 * MIB
        return self._seen(step)

    def sample(self, step):
        return self._seen(step)

    def _seen(self, step):
        own = Reading(quantity=Quantity.PRIVATE, used=self.used, pid=1)
        return MemorySample(at=self.at, step=step, readings=(own,))

    def kills_at(self):
        return None

    def close(self):
        self.closed = True


def stand_in(name, policy):
    mark = Guarding(policy=GuardPolicy(memory=policy))
    return type(name, (tasks.Task,), {MARK: mark})(), mark


def run(guard, task):
    """Do what a wrapper does around a call that is long enough to be looked at."""
    guard.begun()
    guard._looked_at = float("-inf")
    guard.ended(task, "task")


def test_relief_and_forecast_of_a_leaking_task_stand_in_what_prometheus_reads(tmp_path, monkeypatch):
    """Memory, the time that is left, each relief by kind; and in the incident why the process stays."""
    from prometheus_client import CollectorRegistry, generate_latest

    from rayguard.metrics.exporter import TallyCollector

    for name, fresh in (("reliefs", type(TALLY.reliefs)()), ("relieved_bytes", type(TALLY.reliefs)())):
        monkeypatch.setattr(TALLY, name, fresh)
    # What a process full of tests would really give back is another story.
    monkeypatch.setattr(relief_actions, "collect", lambda: None)
    monkeypatch.setattr(relief_actions.ReliefActions, "_private", lambda _self: 0)
    task, mark = stand_in("leak", rayguard.MemoryPolicy(process_limit=1000 * MIB, interval_s=3600.0))
    probes = Growing()
    watch = memory_guard.MemoryGuard(task, mark, probes=probes)
    registry = CollectorRegistry()
    registry.register(TallyCollector())
    pages = []
    for _ in range(24):
        run(watch, task)
        pages.append(generate_latest(registry).decode().splitlines())
    forecast = [
        line for page in pages for line in page if line.startswith("rayguard_memory_forecast_seconds ")
    ]
    assert forecast
    assert float(forecast[0].split()[1]) > 0
    assert registry.get_sample_value("rayguard_memory_bytes") == probes.used
    assert 'rayguard_memory_reliefs_total{relief="collect"} 1.0' in [line for page in pages for line in page]
    assert any(
        line.startswith('rayguard_memory_relieved_bytes_total{relief="collect"}') for line in pages[-1]
    )
    notes = [note for told in Journal(tmp_path).read() for note in told.notes]
    assert any("max_calls" in note for note in notes), notes
    watch.close()
    assert probes.closed


def test_the_watch_goes_on_from_task_to_task_and_begins_anew_with_another_policy():
    """What leaks in a worker leaks over many tasks."""
    policy = rayguard.MemoryPolicy(process_limit=10**15)
    first, mark = stand_in("first", policy)
    second, same = stand_in("second", policy)
    third, other = stand_in("third", rayguard.MemoryPolicy(process_limit=10**14))
    unwatched, none = stand_in("unwatched", None)
    memory_guard.watch(first, mark)
    watch = call_boundary.watch
    memory_guard.watch(second, same)
    assert call_boundary.watch is watch
    assert watch._instance is second
    watch.begun()
    memory_guard.watch(third, other)
    assert call_boundary.watch is watch, "a function that a task calls does not end the watch of that task"
    watch.ended(second, "task")
    memory_guard.watch(third, other)
    assert call_boundary.watch is not watch
    assert not watch._watcher._thread.is_alive()
    memory_guard.watch(unwatched, none)
    assert call_boundary.watch is None
