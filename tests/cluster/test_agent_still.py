"""When a living process counts as standing still: from looks, not from clocks."""

import pytest

from rayguard.cluster.still import (
    SEEN,
    Calls,
    Method,
    in_a_collective,
    of_the_call,
    stands,
    waits_for_others,
)
from rayguard.process.stacks import Place, Thread

USUAL_S = 10.0
SILENT_S = 120.0
RAY = "/site-packages/ray/_private"


def look(calls, now, *, cpu_s=0.0, began_at, **values):
    method = Method(name="Trainer.update", begun_at=began_at, **{"ended_at": 0.0, **values})
    return calls.after([method], cpu_s, now)


def learned(calls=None, seen=SEEN):
    """A process that has made calls of ten seconds, one after the other; the time of the last end."""
    calls, now = calls or Calls(), 0.0
    for call in range(1, seen + 1):
        calls = look(calls, now, begun=call, ended=call - 1, began_at=now, ended_at=now)
        now += USUAL_S
        calls = look(calls, now, begun=call, ended=call, began_at=now - USUAL_S, ended_at=now)
    return calls, now


def running(calls, since, until, **values):
    """The next call begins at ``since`` and is looked at each two seconds."""
    now = since
    while now <= until:
        calls = look(calls, now, begun=SEEN + 1, ended=SEEN, began_at=since, ended_at=since, **values)
        now += 2.0
    return calls


def test_a_call_far_beyond_its_pace_is_silent():
    """Not before the longest of the three limits."""
    calls, now = learned()
    calls = running(calls, now, now + 200)
    assert calls.silent(now + SILENT_S - 1, SILENT_S) is None
    name, silent_s = calls.silent(now + 201, SILENT_S)
    assert name == "Trainer.update"
    assert 190 <= silent_s <= 201


def test_a_process_that_is_never_seen_idle_has_a_pace_too():
    """Each look comes while the next call runs: what ended between two looks tells."""
    calls, now = Calls(), 0.0
    for call in range(1, SEEN + 3):
        calls = look(calls, now + 1, begun=call, ended=call - 1, began_at=now, ended_at=now)
        now += USUAL_S
    assert calls.paces["Trainer.update"].seen == SEEN
    began = now - USUAL_S
    last = {"begun": SEEN + 2, "ended": SEEN + 1, "began_at": began, "ended_at": began}
    calls = look(calls, began + 60, **last)
    assert calls.silent(began + 60, SILENT_S) is None
    assert look(calls, began + 160, **last).silent(began + 160, SILENT_S)[0] == "Trainer.update"


def test_a_call_that_computes_is_not_silent():
    """However long it takes."""
    calls, now = learned()
    start = now
    for step in range(300):
        calls = look(calls, now, begun=SEEN + 1, ended=SEEN, began_at=start, ended_at=start, cpu_s=step * 0.5)
        now += 2.0
    assert calls.silent(now, SILENT_S) is None


def test_nothing_is_said_of_what_was_seldom_seen_or_ran_together():
    """A first long call, a method whose calls overlap, an idle actor."""
    calls, now = learned(seen=SEEN - 2)  # and the one before the silence
    assert running(calls, now, now + 400).silent(now + 400, SILENT_S) is None
    calls, now = learned(look(Calls(), 0.0, begun=2, ended=0, began_at=0.0))
    assert running(calls, now, now + 400).silent(now + 400, SILENT_S) is None
    calls, now = learned()
    assert calls.silent(now + 10_000, SILENT_S) is None


def test_one_long_call_that_ended_well_makes_the_next_one_patient():
    """At least four times the longest; more while few were seen."""
    calls, now = learned()
    calls = look(calls, now, begun=SEEN + 1, ended=SEEN, began_at=now, ended_at=now)
    calls = look(calls, now + 100, begun=SEEN + 1, ended=SEEN + 1, began_at=now, ended_at=now + 100)
    start = now + 100
    calls = look(calls, start, begun=SEEN + 2, ended=SEEN + 1, began_at=start, ended_at=start)
    assert calls.silent(start + 390, SILENT_S) is None
    assert calls.silent(start + 2_000, SILENT_S) is not None


def test_a_machine_that_slept_is_no_hang():
    """What nobody could do in the meantime does not count."""
    calls, now = learned()
    calls = running(calls, now, now + 10)
    assert calls.paused(600).silent(now + 650, SILENT_S) is None


def thread(*frames):
    """Each ``file function``, innermost first."""
    return Thread(
        "", tuple(Place(function, file) for file, _, function in (f.partition(" ") for f in frames))
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
