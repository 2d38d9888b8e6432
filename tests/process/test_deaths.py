"""Deaths are told once, at once, and by one thread."""

import logging
import os
import queue
import subprocess
import threading
import time
from pathlib import Path

import pytest

from rayguard.process import deaths
from rayguard.process.deaths import DeathWatch
from rayguard.process.identity import ProcessId
from tests.open_files import open_files


@pytest.fixture
def watch():
    it = DeathWatch()
    yield it
    it.close()
    assert it._thread is None or not it._thread.is_alive()


@pytest.fixture
def old_kernel(monkeypatch):
    """No pidfd_open, as before Linux 5.3."""
    monkeypatch.delattr(os, "pidfd_open")


def test_no_thread_before_the_first_watch(watch):
    """An object that watches nothing costs nothing."""
    assert watch._thread is None


def test_a_death_is_told_within_milliseconds(watch, processes):
    """The kernel wakes the thread; nothing polls."""
    told = queue.Queue()
    delays = []
    for _ in range(20):
        child = processes.sleeper()
        it = processes.identity(child)
        watch.watch(it, told.put)
        at = time.monotonic()
        child.kill()
        assert told.get(timeout=5) == it
        delays.append(time.monotonic() - at)
    assert sorted(delays)[len(delays) // 2] < 0.1


def test_the_death_of_somebody_elses_child_is_told(watch, processes):
    """A worker is the core's child, not ours; waitpid would not know it."""
    told = queue.Queue()
    parent = processes.python(
        "import subprocess; c = subprocess.Popen(['sleep', '60']); print(c.pid, flush=True); c.wait()"
    )
    grandchild = ProcessId.of(int(parent.said))
    watch.watch(grandchild, told.put)
    os.kill(grandchild.pid, 9)
    assert told.get(timeout=5) == grandchild


def test_one_who_is_dead_already_is_told_from_the_thread(watch, processes):
    """Who watches too late must not wait for ever."""
    child = processes.sleeper()
    it = processes.identity(child)
    child.kill()
    child.wait()
    told = queue.Queue()
    watch.watch(it, lambda process: told.put((process, threading.current_thread().name)))
    assert told.get(timeout=5) == (it, "rayguard-deaths")


def test_a_reused_pid_is_told_as_a_death(watch, processes):
    """The one with the earlier start time is gone, whoever has the pid now."""
    child = processes.sleeper()
    earlier = ProcessId(child.pid, processes.identity(child).started - 1)
    told = queue.Queue()
    watch.watch(earlier, told.put)
    assert told.get(timeout=5) == earlier
    assert child.poll() is None


def test_a_zombie_is_told(watch, processes):
    """Its parent may be too busy to wait for it."""
    child = processes.sleeper()
    it = processes.identity(child)
    child.kill()
    assert processes.until(lambda: it.state() == "Z")
    told = queue.Queue()
    watch.watch(it, told.put)
    assert told.get(timeout=5) == it


def test_every_callback_of_a_process_is_called_once(watch, processes):
    """Two engines may ask for the same process."""
    child = processes.sleeper()
    it = processes.identity(child)
    told = queue.Queue()
    for name in ("first", "second"):
        watch.watch(it, lambda _, name=name: told.put(name))
    child.kill()
    assert {told.get(timeout=5), told.get(timeout=5)} == {"first", "second"}
    with pytest.raises(queue.Empty):
        told.get(timeout=0.2)


def test_an_unwatched_process_dies_in_silence(watch, processes):
    """A teardown on purpose is no incident; the others are still told."""
    forgotten, other = processes.sleeper(), processes.sleeper()
    told = queue.Queue()
    watch.watch(processes.identity(forgotten), told.put)
    watch.watch(other_id := processes.identity(other), told.put)
    watch.unwatch(processes.identity(forgotten))
    watch.unwatch(processes.identity(forgotten))
    forgotten.kill()
    forgotten.wait()
    other.kill()
    assert told.get(timeout=5) == other_id
    assert told.empty()


def test_a_callback_that_raises_does_not_blind_the_watch(watch, processes, caplog):
    """It is logged, and the next death is told."""
    told = queue.Queue()

    def broken(_):
        raise ZeroDivisionError

    first, second = processes.sleeper(), processes.sleeper()
    watch.watch(processes.identity(first), broken)
    watch.watch(processes.identity(first), told.put)
    watch.watch(second_id := processes.identity(second), told.put)
    with caplog.at_level(logging.ERROR, "rayguard"):
        first.kill()
        assert told.get(timeout=5).pid == first.pid
        second.kill()
        assert told.get(timeout=5) == second_id
    assert "ZeroDivisionError" in caplog.text


def test_a_callback_may_watch_the_next_one(watch, processes):
    """A rebuild that begins in the callback watches its new engine there."""
    first, second = processes.sleeper(), processes.sleeper()
    second_id = processes.identity(second)
    told = queue.Queue()
    watch.watch(processes.identity(first), lambda _: watch.watch(second_id, told.put))
    first.kill()
    second.kill()
    assert told.get(timeout=5) == second_id


def test_one_thread_for_many_and_no_descriptor_left(processes):
    """Watching is cheap: one thread, one descriptor each, all given back."""
    before = open_files()
    threads = threading.active_count()
    watch = DeathWatch()
    told = queue.Queue()
    children = [processes.sleeper() for _ in range(20)]
    for child in children:
        watch.watch(processes.identity(child), told.put)
    assert threading.active_count() == threads + 1
    for child in children[:10]:
        child.kill()
    assert {told.get(timeout=5).pid for _ in range(10)} == {child.pid for child in children[:10]}
    watch.close()
    watch.close()
    assert threading.active_count() == threads
    assert not open_files() - before


def test_a_closed_watch_says_so(processes):
    """Watching with it would wait for ever."""
    watch = DeathWatch()
    watch.close()
    with pytest.raises(RuntimeError, match="closed"):
        watch.watch(ProcessId.me(), print)


def test_close_from_a_callback_does_not_wait_for_itself(processes):
    """The thread cannot join itself."""
    watch = DeathWatch()
    closed = threading.Event()

    def close(_):
        watch.close()
        closed.set()

    child = processes.sleeper()
    watch.watch(processes.identity(child), close)
    child.kill()
    assert closed.wait(5)
    assert processes.until(lambda: not watch._thread.is_alive())


def test_a_forked_child_is_refused(watch, processes):
    """It has the parent's epoll set and no thread."""
    child = processes.sleeper()
    watch.watch(processes.identity(child), lambda _: None)
    pid = os.fork()
    if pid == 0:
        try:
            watch.watch(ProcessId.me(), print)
        except RuntimeError:
            os._exit(17)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 17


def test_without_pidfd_deaths_are_still_told(old_kernel, watch, processes):
    """An old kernel is checked often enough."""
    told = queue.Queue()
    child = processes.sleeper()
    it = processes.identity(child)
    watch.watch(it, told.put)
    threading.Event().wait(1.5 * deaths.CHECK_S)  # past the look that the watch itself causes
    at = time.monotonic()
    child.kill()
    assert told.get(timeout=5) == it
    assert time.monotonic() - at < 10 * deaths.CHECK_S


def test_out_of_descriptors_is_no_reason_to_miss_a_death(watch, processes, monkeypatch):
    """A descriptor table that is full falls back to checking."""
    child = processes.sleeper()

    def full(_):
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "pidfd_open", full)
    told = queue.Queue()
    watch.watch(it := processes.identity(child), told.put)
    child.kill()
    assert told.get(timeout=5) == it


def test_an_event_for_a_reused_descriptor_is_no_death(watch, processes):
    """Between the kernel's word and our look, the number may have passed to another process."""
    it = processes.identity(processes.sleeper())
    watch.watch(it, lambda _: None)
    assert watch._take_dead({watch._watched[it].fd}) == []
    assert it in watch._watched


def test_an_idle_watch_burns_no_cpu(watch, processes):
    """It sleeps in the kernel."""
    watch.watch(processes.identity(processes.sleeper()), lambda _: None)
    switches = Path(f"/proc/self/task/{watch._thread.native_id}/status")

    def wakeups():
        lines = switches.read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("voluntary"))

    assert processes.until(lambda: wakeups() > 0)
    threading.Event().wait(0.2)
    before = wakeups()
    subprocess.run(["sleep", "0.5"], check=True)
    assert wakeups() == before


def test_who_waits_for_an_end_waits_longer_while_the_process_is_exiting(monkeypatch):
    """One that lives on is no reason to wait."""
    with subprocess.Popen(["sleep", "600"]) as child:
        process = ProcessId.of(child.pid)
        began = time.monotonic()
        assert not deaths.ends(process, soon_s=0.05)
        assert not process.exiting()
        monkeypatch.setattr(ProcessId, "exiting", lambda _: True)
        assert not deaths.ends(process, soon_s=0.05, limit_s=0.4)
        assert time.monotonic() - began > 0.4
        threading.Timer(0.2, child.kill).start()
        assert deaths.ends(process, soon_s=0.0)
        assert child.wait() < 0


def test_a_killed_process_is_exiting_until_its_memory_is_given_back():
    """As the kernel says of one with half a GiB of it."""
    code = "held = bytearray(1 << 29); held[::4096] = b'1' * len(held[::4096]); print(flush=True); input()"
    seen = False
    for _ in range(20):
        with subprocess.Popen(
            ["python3", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as child:
            child.stdout.readline()
            process = ProcessId.of(child.pid)
            assert not process.exiting()
            child.kill()
            while process.alive():
                seen = seen or process.exiting()
            child.wait()
        if seen:
            return
    pytest.fail("no process was seen as it exited")
