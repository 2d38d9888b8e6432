"""Processes are ended to the last one, and no stranger is touched."""

import logging
import os
import signal
import subprocess
import time

import pytest

from rayguard.process import tree
from rayguard.process.identity import OWNER_ENV, ProcessId, owned_by, owner_mark
from rayguard.process.tree import descendants, end
from tests.open_files import open_files

MARK = owner_mark(ProcessId.me())
STUBBORN = (
    "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint(1, flush=True)\ntime.sleep(60)"
)
FAMILY = """
import subprocess, sys
child = subprocess.Popen([sys.executable, '-c', 'import subprocess, sys; p = subprocess.Popen(["sleep", "60"]);'
                          'print(p.pid, flush=True); p.wait()'], stdout=subprocess.PIPE)
print(child.pid, child.stdout.readline().decode().strip(), flush=True)
child.wait()
"""


@pytest.fixture(params=["pidfd", "old_kernel"])
def kernel(request, monkeypatch):
    """Everything holds with and without pidfd."""
    if request.param == "old_kernel":
        monkeypatch.delattr(os, "pidfd_open")


@pytest.fixture
def marked():
    return {**os.environ, OWNER_ENV: MARK}


def family(processes, **options):
    parent = processes.python(FAMILY, **options)
    child, grandchild = (ProcessId.of(int(pid)) for pid in parent.said.split())
    return processes.identity(parent), child, grandchild


def test_descendants_are_found_to_the_last(processes):
    """Parents stand before their children."""
    parent, child, grandchild = family(processes)
    assert descendants(parent) == (child, grandchild)
    assert descendants(grandchild) == ()


def test_the_dead_and_their_namesakes_have_no_descendants(processes):
    """A reused pid must not lead to a stranger's children."""
    parent, *_ = family(processes)
    assert descendants(ProcessId(parent.pid, parent.started - 1)) == ()
    assert descendants(ProcessId(2**22 - 1, 1)) == ()


def test_a_polite_process_ends_by_the_polite_signal(processes, kernel):
    """Nobody is killed who goes by himself, and nobody waits longer than needed."""
    child = processes.sleeper()
    at = time.monotonic()
    assert end([processes.identity(child)], polite_s=10) == ()
    assert time.monotonic() - at < 5
    assert child.wait(5) == -signal.SIGTERM


def test_the_polite_signal_can_be_chosen(processes):
    """Not SIGINT here: a shell that runs the tests in the background lets its children ignore that."""
    child = processes.sleeper()
    assert end([processes.identity(child)], polite_s=10, polite_signal=signal.SIGUSR1) == ()
    assert child.wait(5) == -signal.SIGUSR1


def test_a_stubborn_process_is_killed_after_the_deadline(processes, kernel):
    """Politeness ends."""
    child = processes.python(STUBBORN)
    at = time.monotonic()
    assert end([processes.identity(child)], polite_s=0.3) == ()
    assert 0.3 <= time.monotonic() - at < 3
    assert child.wait(5) == -signal.SIGKILL


def test_no_politeness_at_all(processes):
    """polite_s=0 sends SIGKILL only."""
    child = processes.sleeper()
    assert end([processes.identity(child)], polite_s=0) == ()
    assert child.wait(5) == -signal.SIGKILL


def test_a_stopped_process_is_ended(processes):
    """It cannot answer a polite signal; SIGKILL needs no answer."""
    child = processes.sleeper()
    processes.stop(child)
    assert end([processes.identity(child)], polite_s=0.1) == ()
    assert child.wait(5) == -signal.SIGKILL


def test_descendants_go_too(processes, kernel):
    """A core's workers are ended with it."""
    parent, child, grandchild = family(processes)
    assert end([parent], polite_s=0) == ()
    assert not any(p.alive() for p in (parent, child, grandchild))


def test_children_born_during_the_polite_step_go_too(processes):
    """A process that forks on SIGTERM does not leave the child behind."""
    code = (
        "import signal, subprocess, time\n"
        "def fork(*_):\n  child = subprocess.Popen(['sleep', '60']); print(child.pid, flush=True)\n"
        "signal.signal(signal.SIGTERM, fork)\nprint(1, flush=True)\n"
        "while True: time.sleep(60)"
    )
    parent = processes.python(code)
    assert end([processes.identity(parent)], polite_s=1) == ()
    born = int(parent.stdout.readline())
    assert processes.until(lambda: (p := ProcessId.of(born)) is None or not p.alive())


def test_orphans_that_are_known_are_ended(processes):
    """A worker whose core died already is found in the caller's list only."""
    parent, child, grandchild = family(processes)
    os.kill(parent.pid, signal.SIGKILL)
    assert processes.until(lambda: not parent.alive())
    assert end([parent, child, grandchild], polite_s=0) == ()
    assert not child.alive()
    assert not grandchild.alive()


def test_a_reused_pid_is_never_hit(processes, kernel):
    """The stranger with the pid of someone we knew lives on."""
    stranger = processes.sleeper()
    was = ProcessId(stranger.pid, processes.identity(stranger).started - 1)
    assert end([was], polite_s=0.1, force_s=0.1) == ()
    assert stranger.poll() is None


def test_a_look_alike_without_our_mark_is_never_touched(processes, marked, caplog):
    """Another job's vLLM looks like ours; the mark tells, and the refusal is logged."""
    ours = processes.sleeper(env=marked)
    theirs = processes.sleeper(env={**os.environ, OWNER_ENV: owner_mark(ProcessId(1, 1))})
    bare = processes.sleeper()
    assert processes.until(lambda: owned_by(processes.identity(ours), MARK))
    with caplog.at_level(logging.WARNING, "rayguard"):
        assert end([processes.identity(p) for p in (theirs, bare, ours)], polite_s=0.2, mark=MARK) == ()
    assert ours.wait(5) == -signal.SIGTERM
    assert theirs.poll() is None
    assert bare.poll() is None
    assert f"process {theirs.pid} does not carry our mark" in caplog.text
    assert f"process {bare.pid} does not carry our mark" in caplog.text


def test_a_strangers_child_of_our_process_is_left_alone(processes, marked):
    """With a mark, descendants must carry it too."""
    code = (
        "import os, subprocess\n"
        f"env = {{k: v for k, v in os.environ.items() if k != {OWNER_ENV!r}}}\n"
        "p = subprocess.Popen(['sleep', '60'], env=env); print(p.pid, flush=True); p.wait()"
    )
    parent = processes.python(code, env=marked)
    child = ProcessId.of(int(parent.said))
    try:
        assert end([processes.identity(parent)], polite_s=0, mark=MARK) == ()
        assert parent.wait(5) == -signal.SIGKILL
        assert child.alive()
    finally:
        os.kill(child.pid, signal.SIGKILL)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a process of another user")
def test_another_users_process_is_never_touched(processes, marked):
    """Even with our mark in its environment."""
    theirs = processes.sleeper(env=marked, user=65534)
    assert processes.until(lambda: processes.user(theirs) == 65534)
    assert end([processes.identity(theirs)], polite_s=0.1, force_s=0.1, mark=MARK) == ()
    assert theirs.poll() is None


def test_a_failing_polite_step_does_not_skip_the_kill(processes, monkeypatch, caplog):
    """Seen elsewhere: a polite stop that failed took the kill with it."""
    child = processes.sleeper()
    send = signal.pidfd_send_signal

    def forbidden(fd, signum):
        if signum == signal.SIGTERM:
            raise PermissionError(1, "Operation not permitted")
        send(fd, signum)

    monkeypatch.setattr(signal, "pidfd_send_signal", forbidden)
    assert end([processes.identity(child)], polite_s=0.1) == ()
    assert child.wait(5) == -signal.SIGKILL
    assert "cannot send SIGTERM" in caplog.text


def test_those_who_would_not_die_are_named_in_time(processes, monkeypatch):
    """A process in an uninterruptible wait keeps nobody waiting; here the signals are lost on the way."""
    lost, mortal = processes.sleeper(), processes.sleeper()
    send = signal.pidfd_send_signal
    lost_id = processes.identity(lost)
    fds = {}
    opened = tree.open_pidfd
    monkeypatch.setattr(tree, "open_pidfd", lambda p: fds.setdefault(p, opened(p)))
    monkeypatch.setattr(
        signal, "pidfd_send_signal", lambda fd, signum: send(fd, signum) if fd != fds.get(lost_id) else None
    )
    at = time.monotonic()
    assert end([lost_id, processes.identity(mortal)], polite_s=0.1, force_s=0.3) == (lost_id,)
    assert time.monotonic() - at < 3
    assert mortal.wait(5) == -signal.SIGTERM


def test_the_calling_process_is_not_ended(processes, caplog):
    """A caller that lists itself does not end here."""
    child = processes.sleeper()
    assert end([ProcessId.me()], polite_s=0, force_s=0.1) == ()
    assert processes.identity(child).alive(), "nor anything that it started"
    assert "asked to end the calling process" in caplog.text


def test_exit_codes_stay_with_the_parent(processes):
    """Waiting for a death must not swallow the exit code that multiprocessing reports later."""
    child = subprocess.Popen(["sleep", "60"])
    end([processes.identity(child)], polite_s=5)
    assert os.waitpid(child.pid, os.WNOHANG)[1] == signal.SIGTERM
    child.returncode = -signal.SIGTERM


def test_no_descriptor_is_left(processes):
    """Every pidfd is given back."""
    before = open_files()
    end([processes.identity(processes.sleeper()) for _ in range(5)], polite_s=5)
    assert not open_files() - before
