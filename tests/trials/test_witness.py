"""The witness: what it wrote is there after SIGKILL, and cheap enough for every step."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import pytest

from rayguard.process.identity import ProcessId
from tests.benchmarks.trials.witness import SLOTS, CoreWitness, WitnessWriter, core_of, name_of

ME = ProcessId.me()


@pytest.fixture
def pair(tmp_path):
    """A writer and its reader."""
    writer = WitnessWriter(tmp_path)
    return writer, CoreWitness(tmp_path / name_of(ME))


def test_counts_are_read_while_they_grow(pair):
    """Start and present tokens of each request, in the order in which they came."""
    writer, witness = pair
    assert witness.read() == []
    writer.begin("a", 10)
    writer.begin("b", 20)
    writer.see("a", 13)
    first, second = witness.read()
    assert (first.id, first.start, first.now) == ("a", 10, 13)
    assert (second.id, second.start, second.now) == ("b", 20, 20)
    assert 0 < first.at_ns <= second.at_ns
    assert [seen.id for seen in witness.read(since=1)] == ["b"]


def test_a_request_that_ended_keeps_its_count(pair):
    """The same id may come again: that is another entry."""
    writer, witness = pair
    writer.begin("a", 1)
    writer.see("a", 5)
    writer.end("a")
    writer.see("a", 9)
    writer.begin("a", 5)
    assert [(seen.start, seen.now) for seen in witness.read()] == [(1, 5), (5, 5)]


def test_each_token_has_its_time(pair):
    """So that what there was at a fault is known afterwards; what came after it had nothing then."""
    writer, witness = pair
    began = time.monotonic_ns()
    writer.begin("a", 10)
    writer.see("a", 12)  # two in one step
    middle = time.monotonic_ns()
    threading.Event().wait(0.005)
    writer.see("a", 13)
    writer.begin("b", 7)
    writer.see("b", 9)
    now = time.monotonic_ns()
    assert [(one.id, one.now) for one in witness.as_of(began, now)] == [("a", 10), ("b", 7)]
    assert [(one.id, one.now) for one in witness.as_of(middle, now)] == [("a", 12), ("b", 7)]
    assert [(one.id, one.now) for one in witness.as_of(middle, middle)] == [("a", 12)]
    assert witness.as_of(now, now) == witness.read()
    assert [one.id for one in witness.as_of(now, now, since=1)] == ["b"]


def test_the_newest_requests_are_kept(pair):
    """However many there were."""
    writer, witness = pair
    for number in range(SLOTS + 10):
        writer.begin(f"r{number}", number)
    read = witness.read()
    assert len(read) == SLOTS
    assert (read[0].id, read[-1].id) == ("r10", f"r{SLOTS + 9}")


def test_the_scheduler_s_own_failure_has_a_time(pair):
    """By the clock that readers in other processes have too."""
    writer, witness = pair
    writer.begin("a", 1)
    assert witness.failed_at is None
    before = time.monotonic()
    writer.fail()
    assert before <= witness.failed_at <= time.monotonic()
    assert [seen.id for seen in witness.read()] == ["a"]


def test_a_killed_process_leaves_its_counts(tmp_path):
    """And the file's name says whose they are."""
    code = (
        "import os, pathlib, signal, sys; from tests.benchmarks.trials.witness import WitnessWriter;"
        "w = WitnessWriter(pathlib.Path(sys.argv[1])); w.begin('a', 3); w.see('a', 7);"
        "print(os.getpid(), flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], check=False, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == -9
    (path,) = tmp_path.iterdir()
    assert core_of(path).pid == int(done.stdout)
    assert [(seen.id, seen.start, seen.now) for seen in CoreWitness(path).read()] == [("a", 3, 7)]
