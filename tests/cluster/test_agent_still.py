"""When a living process counts as standing still: from looks, not from clocks."""

import pytest

from rayguard.cluster.still import SEEN, SILENT_S, Calls, Method, stands, waits_for_others

USUAL_S = 10.0


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
    assert calls.silent(now + SILENT_S - 1) is None
    name, silent_s = calls.silent(now + 201)
    assert name == "Trainer.update"
    assert 190 <= silent_s <= 201


def test_a_call_that_computes_is_not_silent():
    """However long it takes."""
    calls, now = learned()
    start = now
    for step in range(300):
        calls = look(calls, now, begun=SEEN + 1, ended=SEEN, began_at=start, ended_at=start, cpu_s=step * 0.5)
        now += 2.0
    assert calls.silent(now) is None


def test_nothing_is_said_of_what_was_seldom_seen_or_ran_together():
    """A first long call, a method whose calls overlap, an idle actor."""
    calls, now = learned(seen=SEEN - 1)
    assert running(calls, now, now + 400).silent(now + 400) is None
    calls, now = learned(look(Calls(), 0.0, begun=2, ended=0, began_at=0.0))
    assert running(calls, now, now + 400).silent(now + 400) is None
    calls, now = learned()
    assert calls.silent(now + 10_000) is None


def test_one_long_call_that_ended_well_makes_the_next_one_patient():
    """At least four times the longest; more while few were seen."""
    calls, now = learned()
    calls = look(calls, now, begun=SEEN + 1, ended=SEEN, began_at=now, ended_at=now)
    calls = look(calls, now + 100, begun=SEEN + 1, ended=SEEN + 1, began_at=now, ended_at=now + 100)
    start = now + 100
    calls = look(calls, start, begun=SEEN + 2, ended=SEEN + 1, began_at=start, ended_at=start)
    assert calls.silent(start + 390) is None
    assert calls.silent(start + 2_000) is not None


def test_a_machine_that_slept_is_no_hang():
    """What nobody could do in the meantime does not count."""
    calls, now = learned()
    calls = running(calls, now, now + 10)
    assert calls.paused(600).silent(now + 650) is None


@pytest.mark.parametrize(
    ("frames", "waits"),
    [
        (["threading.py", "my_project/trainer.py"], False),
        (["/site-packages/ray/_private/worker.py", "my_project/trainer.py"], True),
        (["/lib/python3.11/selectors.py", "/lib/python3.11/asyncio/base_events.py"], True),
        ([], False),
    ],
)
def test_who_waits_for_another_process_is_no_hang(frames, waits):
    """That one may be; or it may take its time."""
    assert waits_for_others(frames) is waits


def test_a_stopped_process_is_told_after_a_while():
    """A debugger's moment is none."""
    assert not stands(100.0, 103.0)
    assert stands(100.0, 105.0)
