"""The flight recorder: whole records after SIGKILL at any instant, no harm to anybody, nothing of a fork."""

import errno
import gc
import json
import os
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from rayguard.process import mapped_file, owned_files
from rayguard.process.flight import layout, recorder
from rayguard.process.flight.reader import parse, read_recording, recording_of, recordings
from rayguard.process.flight.rounds import ROUND_NS, Steps
from rayguard.process.flight.sampler import Sampler
from rayguard.process.flight.writer import FlightRecorder
from rayguard.process.identity import ProcessId
from tests.open_files import open_files

FURY = Path(__file__).parent / "recorder_fury.py"
CHILDREN = 200


@pytest.fixture
def flight(tmp_path):
    made = FlightRecorder(tmp_path, title="Trainer", actor_id="abc")
    yield made
    made.close()


@pytest.fixture
def started(tmp_path):
    """The recorder of this process, sampling seldom."""
    recorder.stop()
    flight = recorder.start(tmp_path, title="Trainer", every_s=3600.0)
    until(lambda: read(flight).memory)  # the first sample is taken
    yield flight
    recorder.stop()


def until(condition):
    pause = threading.Event()
    for _ in range(3000):
        if condition():
            return
        pause.wait(0.01)
    raise AssertionError("not in time")


def read(flight):
    found = read_recording(flight.path)
    assert found is not None
    return found


# -- SIGKILL


def test_a_killed_writer_leaves_whole_records_and_the_newest_but_one(tmp_path):
    """Two hundred processes, killed at random instants while they write as fast as they can."""
    run = subprocess.run(
        [sys.executable, str(FURY), str(tmp_path), str(CHILDREN), "7"],
        capture_output=True,
        text=True,
        timeout=200,
        check=True,
    )
    children = [json.loads(line) for line in run.stdout.splitlines()]
    assert len(children) == CHILDREN
    for child in children:
        assert child["whole"], child
        # What was done is there; the one in the works may be, and may be torn.
        assert child["done"] - 1 <= child["newest_event"] <= child["done"], child
        assert child["done"] - 1 <= child["newest_memory"] <= child["done"], child
        # A torn record takes the place of the oldest one, and of no other.
        assert child["gaps"] == 0, child
        assert child["memory_gaps"] == 0, child
        assert child["texts"] >= min(child["done"], layout.TEXTS.slots - 1), child
        assert 0 <= child["begun"] - child["ended"] <= 1, child
        assert child["done"] <= child["begun"] <= child["done"] + 1, child
    assert any(child["begun"] != child["ended"] for child in children), "none was killed in a call"
    assert any(child["done"] > layout.TEXTS.slots for child in children), "none went around the ring"


# -- what is recorded


def test_what_was_told_is_read_back(flight):
    """Memory with its step and method, events, running calls, and the word of the end."""
    call = flight.begin("Trainer", "update")
    flight.record_memory(private=1000, shared=200, device=30, node_ratio=0.5, step=4)
    flight.record_event("engine 0 rebuilt")
    flight.ending("os._exit(3)")
    flight.ending("something later")
    found = read(flight)
    assert (found.process, found.alive) == (ProcessId.me(), True)
    assert (found.title, found.actor_id, found.step) == ("Trainer", "abc", 4)
    (memory,) = found.memory
    assert (memory.private, memory.shared, memory.device, memory.node_ratio) == (1000, 200, 30, 0.5)
    assert (memory.step, memory.method) == (4, "Trainer.update")
    assert [one.line for one in found.events] == ["engine 0 rebuilt"]
    assert found.ending == "os._exit(3)"
    (running,) = found.running
    assert (running.name, running.begun, running.ended) == ("Trainer.update", 1, 0)
    assert time.time() - 60 < running.begun_at <= found.last_at <= time.time() + 1
    flight.end(call)
    found = read(flight)
    assert found.running == ()
    (method,) = found.methods
    assert (method.begun, method.ended) == (1, 1)
    assert method.ended_at >= method.begun_at


def test_steps_that_are_short_share_a_record():
    """Their least memory counts, and no step is missing between two records."""
    steps = Steps()
    steps.see(100)
    assert steps.ended(1, 0, now=0) == (1, 1, 100, 100, 0)
    for step in (2, 3):
        steps.see(90 + step)
        assert steps.ended(step, 0, now=step) is None
    steps.see(300)
    assert steps.ended(4, 20, now=ROUND_NS) == (2, 4, 92, 300, 20)
    assert steps.ended(5, 0, now=10 * ROUND_NS) is None, "nothing was measured"


def test_the_rings_keep_the_newest(flight):
    """What goes around overwrites the oldest; labels are never overwritten."""
    for number in range(layout.TEXTS.slots + 50):
        flight.record_event(f"event {number}")
    found = read(flight)
    assert [one.line for one in found.events] == [f"event {n}" for n in range(50, layout.TEXTS.slots + 50)]
    assert found.title == "Trainer"


def test_more_methods_than_there_is_room_for_share_a_place(flight):
    """None is lost, and none is counted as another one."""
    for number in range(2 * layout.METHODS):
        flight.end(flight.begin("Big", f"m{number}"))
    methods = {one.name: one.ended for one in read(flight).methods}
    assert len(methods) == layout.METHODS
    assert methods["Big.m0"] == 1
    assert methods["other methods"] == layout.METHODS + 1


def test_the_longest_call_of_a_method_is_known_unless_two_ran_at_once(flight):
    """Who looks from outside learns how long a call takes, however seldom it looks."""

    def longest(at):
        return layout.read_words(flight.path.read_bytes())[at + layout.LONGEST]

    pause = threading.Event()
    for wait_s in (0.0, 0.05, 0.0):
        at = flight.begin("Trainer", "update")
        pause.wait(wait_s)
        flight.end(at)
    assert 0.05e9 <= longest(at) < 5e9
    first, other = flight.begin("Trainer", "update"), flight.begin("Trainer", "save")
    flight.end(other)
    flight.end(first)
    assert 0 < longest(other) < longest(at) < 5e9, "each has its own"
    flight.end(flight.begin("Trainer", "update") and flight.begin("Trainer", "update"))
    assert longest(at) == layout.UNTOLD


def test_calls_of_many_threads_are_all_counted(flight):
    """Without a lock."""
    errors = []

    def work(name):
        try:
            for _ in range(2000):
                flight.end(flight.begin("A", name))
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(name,)) for name in "aabb"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    flight.end(flight.begin("A", "a"))
    flight.end(flight.begin("A", "b"))
    assert {one.name: (one.begun, one.ended) for one in read(flight).methods} == {
        "A.a": (4001, 4001),
        "A.b": (4001, 4001),
    }


def test_a_sample_has_memory_the_machine_and_the_calls(flight):
    """What the thread does once a second."""
    call = flight.begin("A", "a")
    Sampler(flight).sample()
    assert flight.failures == 0
    found = read(flight)
    assert found.memory[-1].private > 1 << 20
    assert 0 < found.memory[-1].node_ratio < 1
    (calls,) = found.calls
    assert (calls.method, calls.begun, calls.ended, calls.running) == ("A.a", 1, 0, 1)
    flight.end(call)


def test_who_feeds_memory_spares_the_recorder_its_own_reading(flight):
    """One curve, not two that contradict each other."""
    flight.record_memory(private=7)
    Sampler(flight).sample()
    flight.end(flight.begin("A", "a"))
    assert [one.private for one in read(flight).memory] == [7]


def test_full_collections_are_recorded_and_a_running_one_shows(flight):
    """Only those of the oldest generation; a crash in the middle of one can be seen."""
    seen = []
    watch = lambda phase, info: seen.append((info["generation"], read(flight).collecting_since))  # noqa: E731
    gc.callbacks.append(watch)
    try:
        gc.collect(0)
        gc.collect()
    finally:
        gc.callbacks.remove(watch)
    assert [since > 0 for generation, since in seen if generation == 2] == [True, False]
    flight.write_collections(time.monotonic_ns(), at_least_ns=1)
    found = read(flight)
    assert found.collecting_since == 0
    assert sum(one.times for one in found.collections) >= 1


def test_a_collection_in_the_middle_of_a_write_harms_nothing(flight, monkeypatch):
    """The callback writes while a write is under way: each has a slot of its own."""
    real = layout.slot

    def interrupted(*arguments):
        monkeypatch.setattr(layout, "slot", real)
        flight.record_event("from within")
        return real(*arguments)

    monkeypatch.setattr(layout, "slot", interrupted)
    flight.record_event("outer")
    assert sorted(one.line for one in read(flight).events) == ["from within", "outer"]


# -- harm to nobody


def test_a_forked_child_writes_nothing_into_its_parents_recording(started):
    """Not with what it tells, not with the end of the call in which it was forked, not as it exits."""
    recorder.record_event("of the parent")
    call = recorder.begin("Trainer", "update")
    before = started.path.read_bytes()
    pid = os.fork()
    if pid == 0:
        failed = 1
        try:
            recorder.record_event("of the child")
            recorder.record_memory(private=1)
            recorder.ending("the child's end")
            started.record_event("of the child, directly")
            started.end(call)
            started.begin("Other", "method")
            gc.collect()
            failed = 0 if recorder.current() is None else 2
        finally:
            os._exit(failed)
    assert os.waitpid(pid, 0)[1] == 0
    after = started.path.read_bytes()
    recorder.end(call)
    assert after == before
    recorder.record_event("of the parent again")
    assert [one.line for one in read(started).events] == ["of the parent", "of the parent again"]


def test_a_child_that_lives_on_does_not_keep_the_recording_locked(tmp_path):
    """A sweep finds the parent dead although a child of it lives."""
    code = (
        "import os, sys, time\n"
        "from rayguard.process.flight import recorder\n"
        f"flight = recorder.start({str(tmp_path)!r}, every_s=3600)\n"
        "held = memoryview(flight.rings._map)\n"  # as on the stack of a thread that the child does not have
        "r, w = os.pipe()\n"
        "if os.fork() == 0:\n"
        "    os.write(w, b'x')\n"
        "    sys.stdin.read()\n"
        "    os._exit(0)\n"
        "os.read(r, 1)\n"  # the child is past what is done for it at a fork
        "print('there', flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert child.stdout.readline() == b"there\n"
        child.wait(30)
        (path,) = recordings(tmp_path)
        assert owned_files.sweep(path.parent, layout.KIND, layout.ENDING, older_than_s=0) == []
        assert owned_files.sweep(path.parent, layout.KIND, layout.ENDING, older_than_s=0) == [path]
    finally:
        child.stdin.close()
        child.stdout.close()


def test_the_file_is_ours_alone_and_has_all_its_blocks(flight):
    """A store into a hole of a full file system would be a SIGBUS."""
    found = flight.path.stat()
    assert stat.S_IMODE(found.st_mode) == 0o600
    assert found.st_size == layout.SIZE_BYTES
    assert found.st_blocks * 512 >= layout.SIZE_BYTES


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_an_os_error_that_leaves_no_file(tmp_path, monkeypatch, code):
    """Whoever starts the recorder counts it and goes on without."""

    def full(*_):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(mapped_file.os, "posix_fallocate", full)
    gc.collect()
    callbacks, before = list(gc.callbacks), open_files()
    with pytest.raises(OSError, match=os.strerror(code)):
        recorder.start(tmp_path)
    assert recorder.current() is None
    assert list((tmp_path / "flight").iterdir()) == []
    assert gc.callbacks == callbacks
    gc.collect()
    assert not open_files() - before


def test_a_home_that_is_a_file_is_an_os_error(tmp_path):
    """And no more than that."""
    (tmp_path / "flight").write_text("")
    with pytest.raises(OSError, match="flight"):
        FlightRecorder(tmp_path)


def test_an_error_of_the_recorder_is_counted_and_goes_nowhere(tmp_path, monkeypatch):
    """In each of the things that can be told; the first is handed on."""
    told = []
    flight = FlightRecorder(tmp_path, failed=told.append)
    monkeypatch.setattr(layout, "slot", lambda *_: 1 / 0)
    flight.record_event("x")
    flight.record_memory(private=1)
    flight.ending("x")
    assert flight.failures == 3
    assert [type(error) for error in told] == [ZeroDivisionError]
    flight.close()


def test_a_call_goes_on_when_the_recorder_is_broken(started, monkeypatch):
    """The guard's own hook never raises."""
    monkeypatch.setattr(FlightRecorder, "begin", lambda *_: 1 / 0)
    monkeypatch.setattr(FlightRecorder, "end", lambda *_: 1 / 0)
    recorder.end(recorder.begin("A", "a"))
    recorder.end(99)
    assert started.failures == 2


def test_nothing_happens_before_the_start_and_after_the_stop(tmp_path):
    """Also not to a call that was under way."""
    recorder.stop()
    recorder.end(recorder.begin("A", "a"))
    recorder.record_event("x")
    recorder.record_memory(private=1, step=1)
    recorder.ending("x")
    flight = recorder.start(tmp_path, every_s=3600)
    assert recorder.start(tmp_path / "other") is flight
    call = recorder.begin("A", "a")
    recorder.stop()
    recorder.end(call)
    flight.end(call)
    flight.record_event("x")
    flight.close()
    assert flight.failures == 0
    assert read_recording(flight.path).events == ()


def test_the_thread_samples_and_ends(tmp_path):
    """And the recorder gives back what it took."""
    gc.collect()
    before = open_files()
    flight = recorder.start(tmp_path, every_s=0.01)
    until(lambda: len(read(flight).memory) >= 3)
    recorder.stop()
    assert "rayguard-recorder" not in [thread.name for thread in threading.enumerate()]
    assert flight._on_gc not in gc.callbacks
    gc.collect()
    assert not open_files() - before


def test_an_end_by_its_own_hand_leaves_a_word(tmp_path):
    """From outside, ``os._exit`` looks like a SIGKILL."""
    start = (
        f"import os, sys\nfrom rayguard.process.flight import recorder\nrecorder.start({str(tmp_path)!r})\n"
    )
    words = {}
    for how in ("os._exit(3)", "sys.exit(4)", "raise ValueError('x')", "os.kill(os.getpid(), 9)"):
        child = subprocess.Popen([sys.executable, "-c", start + how], stderr=subprocess.DEVNULL)
        child.wait(60)
        words[how] = recording_of(tmp_path, child.pid).ending
    assert words["os._exit(3)"].startswith("os._exit(3) in <module> (<string>:4)")
    assert words["sys.exit(4)"] == "the interpreter came to its end"
    assert words["raise ValueError('x')"] == "the interpreter came to its end after ValueError"
    assert words["os.kill(os.getpid(), 9)"] == ""


# -- reading


def test_whatever_the_bytes_are_the_reader_raises_nothing(flight):
    """Every kind of damage: what comes out was written whole."""
    import random

    for number in range(40):
        flight.record_event(f"event {number}")
        flight.record_memory(private=number, step=number)
        flight.end(flight.begin("A", f"m{number}"))
    whole = flight.path.read_bytes()
    rng = random.Random(3)
    for _ in range(150):
        torn = bytearray(whole)
        for _ in range(rng.randrange(1, 200)):
            torn[rng.randrange(len(torn))] = rng.randrange(256)
        found = parse(bytes(torn))
        if found is not None:
            assert {one.line for one in found.events} <= {f"event {n}" for n in range(40)}
            assert all(one.private == one.step or one.step < 0 or one.method for one in found.memory)
            found.sentence()
    assert parse(b"") is None
    assert parse(whole[:-1]) is None
    assert parse(bytes(len(whole))) is None
    assert parse(b"\xff" * len(whole)) is None


def test_what_is_no_recording_is_none(tmp_path):
    """A missing file, a directory, a link, another file."""
    assert read_recording(tmp_path / "missing") is None
    assert recordings(tmp_path / "missing") == []
    other = tmp_path / "other"
    other.write_text("hello")
    assert read_recording(other) is None
    (tmp_path / "link").symlink_to(other)
    assert read_recording(tmp_path / "link") is None
    assert recording_of(tmp_path, 1) is None


def test_another_actors_recording_is_not_taken_for_it(flight, tmp_path):
    """Pids come again."""
    assert recording_of(tmp_path, os.getpid(), actor_id="abc") is not None
    assert recording_of(tmp_path, os.getpid(), actor_id="other") is None
    assert recording_of(tmp_path, os.getpid() + 1) is None


def test_a_process_may_still_have_its_own_end_as_its_target(tmp_path):
    """``os._exit`` is wrapped, and pickled all the same: spawned and forked children find their own."""
    script = (
        "import multiprocessing, os, pickle, sys\n"
        "from rayguard.process.flight import recorder\n"
        "if __name__ == '__main__':\n"
        f"    recorder.start({str(tmp_path)!r})\n"
        "    assert pickle.loads(pickle.dumps(os._exit)) is os._exit\n"
        "    for way in ('spawn', 'fork'):\n"
        "        child = multiprocessing.get_context(way).Process(target=os._exit, args=(4,))\n"
        "        child.start()\n"
        "        child.join(60)\n"
        "        print(child.exitcode)\n"
    )
    path = tmp_path / "script.py"
    path.write_text(script)
    ran = subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=120, check=False)
    assert ran.stdout.split() == ["4", "4"], ran.stderr
