"""Real processes that die in real ways, and what their recordings tell of who did it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rayguard.process.death_cause.evidence import gather
from rayguard.process.death_cause.killer import Killer, who_killed
from rayguard.process.flight.reader import recording_of

START = """
import ctypes, faulthandler, os, sys, threading
from rayguard.process.flight import recorder
flight = recorder.start(sys.argv[1], every_s=0.02)
pause = threading.Event()
from rayguard.process.flight.reader import read_recording
while not read_recording(flight.path).memory:
    pause.wait(0.01)
call = recorder.begin("Trainer", "update")
print("ready", flush=True)
"""
DEADLINE_S = 60


def died(home, how, act=None, *, known=True):
    """Run ``how`` in a process that records; return the verdict, and whether its end is known by its code."""
    with (home / "err").open("wb") as stderr:
        child = subprocess.Popen(
            [sys.executable, "-c", START + how, str(home)], stdout=subprocess.PIPE, stderr=stderr
        )
        try:
            assert child.stdout.readline() == b"ready\n"
            if act is not None:
                act(child.pid)
            code = child.wait(DEADLINE_S)
        finally:
            child.kill()
            child.stdout.close()
    recording = recording_of(home, child.pid)
    assert [one.name for one in recording.running] == ["Trainer.update"]
    return who_killed(gather(recording, died_at=time.time(), exitcode=code if known else None))


def kill(number):
    return lambda pid: os.kill(pid, number)


WAIT = "pause.wait(60)"


@pytest.mark.parametrize("known", [True, False], ids=["exit code known", "nobody saw it end"])
@pytest.mark.parametrize(
    ("how", "act", "killer", "said"),
    [
        (WAIT, kill(signal.SIGKILL), Killer.OUTSIDE, "SIGKILL of a person or another program"),
        ("os._exit(3)", None, Killer.ITSELF, "os._exit(3)"),
        ("sys.exit(4)", None, Killer.ITSELF, "the interpreter came to its end"),
        ("raise ValueError('x')", None, Killer.ITSELF, "after ValueError"),
        ("faulthandler.enable(); ctypes.string_at(0)", None, Killer.ITSELF, "SIGSEGV"),
        ("faulthandler.enable(); os.abort()", None, Killer.ITSELF, "SIGABRT"),
    ],
    ids=["SIGKILL", "os._exit", "sys.exit", "exception", "segfault", "abort"],
)
def test_who_ended_a_process_is_named(tmp_path, how, act, killer, said, known):
    """Also where nobody was there to see the exit code, as for an actor of Ray."""
    verdict = died(tmp_path, how, act, known=known)
    assert verdict.killer is killer, verdict
    assert said in verdict.how
    assert verdict.confidence >= 0.8


def test_a_polite_signal_is_told_by_the_exit_code(tmp_path):
    """SIGTERM kills Python at once, without a word."""
    verdict = died(tmp_path, WAIT, kill(signal.SIGTERM))
    assert (verdict.killer, "SIGTERM" in verdict.how) == (Killer.OUTSIDE, True)


# -- out of memory


@pytest.fixture
def small_group():
    """A memory cgroup of 96 MiB, where this machine lets us make one."""
    name = f"rayguard-test-{os.getpid()}"
    mount = Path("/sys/fs/cgroup/memory")
    limits = {"memory.limit_in_bytes": str(96 << 20)}
    if not mount.is_dir():
        mount, limits = Path("/sys/fs/cgroup"), {"memory.max": str(96 << 20), "memory.swap.max": "0"}
    group = mount / name
    try:
        group.mkdir()
        for file, said in limits.items():
            if (group / file).exists():
                (group / file).write_text(said)
        assert (group / next(iter(limits))).exists(), "it has no memory controller"
    except (OSError, AssertionError) as error:
        if group.is_dir():
            group.rmdir()
        pytest.skip(f"no memory cgroup can be made here: {error}")
    yield group
    group.rmdir()


@pytest.mark.parametrize("log", [True, False], ids=["with the kernel's log", "by its counts alone"])
def test_the_kernels_kill_at_the_limit_of_a_cgroup_is_named(tmp_path, small_group, monkeypatch, log):
    """A process that takes more memory than its cgroup may have."""
    join = f"open({str(small_group / 'cgroup.procs')!r}, 'w').write(str(os.getpid()))\n"
    take = "kept = []\nwhile True:\n    kept.append(os.urandom(1) * 4_000_000); pause.wait(0.02)\n"
    monkeypatch.setattr(sys.modules[__name__], "START", "import os\n" + join + START)
    if not log:
        monkeypatch.setattr("rayguard.process.death_cause.evidence._killed", lambda *_, **__: ())
    verdict = died(tmp_path, take, known=False)
    assert verdict.killer is Killer.KERNEL, verdict
    assert verdict.kind == "host_oom"
    assert "by the kernel, out of memory at" in verdict.how
    assert verdict.confidence >= 0.9
    assert any("oom_kill event" in line or "Killed process" in line for line in verdict.evidence)
