"""Guarded tasks on a real Ray: answers, errors, streams, and a leak that is seen, told and relieved."""

from __future__ import annotations

import os
import threading
import urllib.request
from pathlib import Path

import pytest

import rayguard
from rayguard.process.flight.reader import recording_of
from rayguard.recovery.incident import Outcome, incident_of
from tests.actors.memory.test_memory_ray import get, incidents_of

pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("default")]

MIB = 1 << 20
LIMIT = 400 * MIB  # a worker has about 60 MiB of its own
CALLS = 12
_ANSWER_S = 120.0


SEEN = []


def leak(size):
    SEEN.append(bytearray(b"x") * size)
    threading.Event().wait(0.25)  # longer than the shortest time between two looks
    return os.getpid(), len(SEEN)


def page_of_this_process():
    """Return what Prometheus would read in the worker that runs this."""
    from rayguard.recovery.tally import TALLY

    with urllib.request.urlopen(TALLY.metrics_url, timeout=10) as answer:
        return answer.read().decode().splitlines()


def guarded(cluster, function, *, num_cpus=1, **options):
    return cluster.remote(num_cpus=num_cpus, **options)(rayguard.guard(function))


def test_tasks_answer_raise_and_stream_as_without_the_guard(cluster):
    def answer(left, *, right):
        return left + right

    def fail():
        raise ValueError("mine")

    def stream(number):
        for each in range(number):  # noqa: UP028 - Ray 2.60 sends values, which a range does not take
            yield each

    assert get(cluster, guarded(cluster, answer).remote(1, right=2)) == 3
    with pytest.raises(ValueError, match="mine") as caught:
        get(cluster, guarded(cluster, fail).remote())
    told = incident_of(caught.value)
    assert (told.target, told.kind, told.pid > 0) == ("fail.task", "user_code", True)
    assert [get(cluster, ref) for ref in guarded(cluster, stream).remote(3)] == [0, 1, 2]


def test_what_a_worker_leaks_over_its_tasks_is_seen_and_told(cluster):
    """In the recording of its process, in its metrics, in an incident that says what Ray can do about it."""
    policy = rayguard.MemoryPolicy(process_limit=LIMIT, interval_s=0.2)
    environment = {"env_vars": {"RAYGUARD_METRICS_PORT": "0"}}

    @cluster.remote(num_cpus=2, runtime_env=environment)
    @rayguard.guard(memory=policy)
    def tokenize(size):
        return leak(size)

    @cluster.remote(num_cpus=2, runtime_env=environment)
    def metrics():
        return os.getpid(), page_of_this_process()

    answers = [get(cluster, tokenize.remote(40 * MIB)) for _ in range(CALLS)]
    assert [number for _, number in answers] == list(range(1, CALLS + 1)), "one worker ran them all"
    pid, page = get(cluster, metrics.remote())
    assert {one for one, _ in answers} == {pid}

    recording = recording_of(Path(os.environ["RAYGUARD_HOME"]), pid)
    assert recording.sentence().startswith("RSS grew")
    assert recording.sentence().endswith("in `tokenize.task`")

    numbers = dict(line.rsplit(" ", 1) for line in page if not line.startswith("#"))
    assert float(numbers["rayguard_memory_bytes"]) > CALLS * 40 * MIB
    assert float(numbers['rayguard_memory_reliefs_total{relief="collect"}']) >= 1
    assert float(numbers['rayguard_memory_reliefs_total{relief="free"}']) >= 1
    assert float(numbers['rayguard_calls_total{target="tokenize"}']) == CALLS

    [told] = [one for one in incidents_of("tokenize", since=0.0) if one.outcome is Outcome.FAILED]
    assert told.pid == pid
    assert any("max_calls" in note for note in told.notes), told.notes


def test_a_worker_that_leaks_is_replaced_by_ray_where_max_calls_says_so(cluster):
    """Every answer arrives, each from a task that ran once."""
    task = guarded(cluster, leak, max_calls=3, num_cpus=2)
    answers = cluster.get([task.remote(MIB) for _ in range(9)], timeout=_ANSWER_S)
    assert sorted(number for _, number in answers) == [1, 1, 1, 2, 2, 2, 3, 3, 3]
    assert len({pid for pid, _ in answers}) == 3


def test_a_scope_within_a_task_ends_what_it_made_there(cluster):
    """References of ended scopes do not wait for the task's own end."""

    @rayguard.guard
    def scoped():
        import ray

        from rayguard.objects.holdings import HOLDINGS

        kept = []
        for step in range(3):
            with rayguard.object_scope(step, keep_steps=0):
                kept.append(ray.put(b"x" * MIB))
        return len(kept), HOLDINGS.totals.ended

    assert get(cluster, cluster.remote(scoped).remote()) == (3, 3)


def test_a_guarded_function_within_an_actor_leaves_the_actors_watch_alone(cluster):
    """There it is a function like any other."""

    @rayguard.guard
    def double(number):
        return 2 * number

    @cluster.remote(num_cpus=0)
    @rayguard.guard
    class Doubles:
        def work(self, number):
            from rayguard.actors.memory import call_boundary

            return double(number), type(call_boundary.watch._instance).__name__

    assert get(cluster, Doubles.remote().work.remote(4)) == (8, "Doubles")
