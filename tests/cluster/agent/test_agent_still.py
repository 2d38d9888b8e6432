"""When a living process counts as standing still: from looks, not from clocks."""

import pytest

from rayguard.cluster.agent.stall_verdict import (
    SEEN,
    Method,
    RunningCalls,
    in_a_collective,
    of_the_call,
    stands,
    waits_for_others,
)
from rayguard.process.stacks import CodePlace, Thread

USUAL_S = 10.0
SILENT_S = 120.0
RAY = "/site-packages/ray/_private"


def method(begun=SEEN + 1, ended=SEEN, began_at=0.0, longest_s=USUAL_S):
    return Method(
        name="Trainer.update",
        begun=begun,
        ended=ended,
        begun_at=began_at,
        ended_at=began_at,
        longest_s=longest_s,
    )


def running(*methods, until, cpu=0.0):
    """What runs is looked at each two seconds, and uses ``cpu`` of a core."""
    calls, now = RunningCalls(), 0.0
    while now <= until:
        calls = calls.after(methods or [method()], now * cpu, now)
        now += 2.0
    return calls


def test_a_call_far_beyond_its_pace_is_silent():
    """Not before the longer of the two limits; whoever looks may have come while it ran."""
    calls = running(until=200)
    assert calls.silent(SILENT_S - 1, SILENT_S) is None
    assert calls.silent(201.0, SILENT_S) == ("Trainer.update", 201.0)
    calls = running(method(longest_s=100.0), until=600)
    assert calls.silent(499.0, SILENT_S) is None
    assert calls.silent(501.0, SILENT_S) == ("Trainer.update", 501.0)


def test_a_call_that_computes_is_not_silent():
    """However long it takes."""
    assert running(until=600, cpu=0.25).silent(601.0, SILENT_S) is None


@pytest.mark.parametrize(
    "methods",
    [
        [method(begun=SEEN, ended=SEEN - 1)],
        [method(longest_s=None)],
        [method(begun=SEEN + 2)],
        [method(), method(begun=1, ended=0)],
        [method(begun=SEEN)],
    ],
    ids=["seldom", "together once", "together now", "two methods", "idle"],
)
def test_nothing_is_said_of_what_cannot_be_told(methods):
    assert running(*methods, until=600).silent(10_000.0, SILENT_S) is None


def test_what_happens_begins_it_anew():
    """Another call, of whatever method."""
    calls = running(until=200)
    other = method(begun=7, ended=7, began_at=199.0)
    assert calls.after([method(), other], 0.0, 200.0).silent(300.0, SILENT_S) is None


def test_a_machine_that_slept_is_no_hang():
    """What nobody could do in the meantime does not count."""
    assert running(until=10).paused(600).silent(650.0, SILENT_S) is None


def thread(*frames):
    """Each ``file function``, innermost first."""
    return Thread(
        "", tuple(CodePlace(function, file) for file, _, function in (f.partition(" ") for f in frames))
    )


IDLE = thread(f"{RAY}/worker.py main_loop", f"{RAY}/workers/default_worker.py <module>")
METHOD = (f"{RAY}/function_manager.py actor_method_executor", f"{RAY}/worker.py main_loop")
TASK = (f"{RAY}/worker.py main_loop",)
LOOP = ("/lib/asyncio/events.py _run", "/lib/asyncio/base_events.py _run_once")


@pytest.mark.parametrize(
    ("call", "outside", "waits"),
    [
        (["/lib/threading.py wait", "my_project/trainer.py update"], METHOD, False),
        (["my_project/worker.py main", "my_project/trainer.py update"], METHOD, False),
        ([f"{RAY}/worker.py get_objects", "my_project/trainer.py update"], METHOD, True),
        (["my_project/task.py reward"], TASK, False),
        (["/lib/python3.11/socket.py readinto", "my_project/tools.py ask"], METHOD, True),
        (["/lib/python3.11/subprocess.py wait", "my_project/tools.py run"], METHOD, True),
        (["my_project/actor.py step"], LOOP, False),
        (["/lib/selectors.py select", "my_project/actor.py step"], LOOP, True),
    ],
)
def test_who_waits_for_another_process_is_no_hang(call, outside, waits):
    """That one may be; or it may take its time. What Ray runs the call from is in every worker."""
    found = of_the_call([IDLE, thread(*call, *outside)])
    assert found == thread(*call).places
    assert waits_for_others(found) is waits
    assert not in_a_collective(found)


def test_a_rank_that_waits_for_its_group_is_told_as_such():
    call = of_the_call([thread("/torch/distributed/distributed_c10d.py all_reduce", "my/t.py step", *METHOD)])
    assert in_a_collective(call)
    assert not waits_for_others(call)


def test_a_worker_without_a_call_has_no_frames_of_one():
    """Neither one that waits for work, nor an event loop that has none."""
    loop = thread("/lib/selectors.py select", "/lib/asyncio/base_events.py _run_once")
    assert of_the_call([IDLE, loop]) == ()


def test_a_stopped_process_is_told_after_a_while():
    """A debugger's moment is none."""
    assert not stands(100.0, 103.0)
    assert stands(100.0, 105.0)
