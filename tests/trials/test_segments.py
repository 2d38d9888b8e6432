"""Shared memory of processes that die: found where it stays, not where it is gone or somebody has it."""

from __future__ import annotations

import subprocess
import sys
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

import pytest

from tests.benchmarks.trials.segments import Segments

HOLD = (
    "import sys; from multiprocessing import resource_tracker, shared_memory;"
    "resource_tracker.register = lambda *_: None;"
    "s = shared_memory.SharedMemory(create=True, size=4096); print(s.name, flush=True); sys.stdin.read()"
)


@pytest.fixture
def holder():
    """A process with a segment of its own."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        name = process.stdout.readline().strip()
        yield process, name
        process.kill()
        process.wait(10)
    try:
        segment = SharedMemory(name)
    except FileNotFoundError:
        return
    segment.close()
    segment.unlink()


def test_what_a_dead_process_leaves_is_told_once(holder):
    """Not while it lives."""
    process, name = holder
    segments = Segments()
    segments.note([process.pid])
    assert segments.left(0.0) == []
    process.kill()
    process.wait(10)
    assert segments.left(0.0) == [f"/dev/shm/{name}"]
    assert segments.left(0.0) == []


def test_what_another_process_holds_or_is_gone_is_not_left(holder):
    """Someone may have taken it over."""
    process, name = holder
    segments = Segments()
    segments.note([process.pid])
    process.kill()
    process.wait(10)
    with Path(f"/dev/shm/{name}").open("rb"):
        assert segments.left(0.0) == []
    SharedMemory(name).unlink()
    assert segments.left(0.0) == []
