"""The finder: real leaks in real processes are named; nothing is switched on where nothing grows."""

import json
import os
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest

from rayguard.memory.growth.finder import AGAIN_S, LeakFinder
from rayguard.memory.growth.growing import Growing
from rayguard.memory.growth.heap_census import HeapCensus
from rayguard.memory.reading import Quantity

HERE = Path(__file__).parent
MIB = 1 << 20
GROWING = Growing(quantity=Quantity.PRIVATE, pid=os.getpid(), bytes_per_step=64 * MIB)


@pytest.fixture(autouse=True)
def off():
    """A test that fails must not leave it on for others."""
    yield
    on = tracemalloc.is_tracing()
    tracemalloc.stop()
    assert not on


def watched(name, steps=40):
    """Run a leak in a process of its own; return what its finder found, and whether one hunted."""
    done = subprocess.run(
        [sys.executable, "-W", "error", str(HERE / "growth_leaks.py"), name, str(steps)],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    return told["found"], told["hunted"]


LEAKS = {
    "Bytearrays": ["`list` Bytearrays.seen grows by 1 item a step (bytearray, 8.0 MiB each)", " in update"],
    "Small": ["`list` Small.seen grows by 8,000 items a step", " in update", "allocations"],
    "InDict": ["`dict` __main__.CACHE grows by 1 item a step", "in filled (called at growth_leaks.py:"],
    "Closure": ["`list` kept in the closure of __main__.Closure.__init__.<locals>.step grows by 1 item"],
    "Arrays": ["`list` Arrays.seen grows by 1 item a step (numpy.ndarray, 8.0 MiB each)", " in update"],
    "InThread": ["`list` __main__.LOCAL.kept grows by 1 item"],
    "InAnotherThread": ["`list` __main__.LOCAL.kept grows by 1 item"],
    "InVariable": ["`list` a variable of ", "loop", "grows by 1 item"],
    "Chain": ["in filled (called at growth_leaks.py:"],
    "Unbounded": ["`dict` the cache of __main__.Unbounded.cached grows by 1 item"],
    "InC": ["C code took by malloc and did not free", "no Python object accounts for it"],
    "Fragments": ["fragmentation and no leak; malloc_trim can give it back"],
    "Mappings": ["`list` Mappings.seen grows by 1 item a step (mmap.mmap, 8.0 MiB each)"],
    "Segments": ["`list` Segments.seen grows by 1 item a step", "SharedMemory, 8.0 MiB each"],
    "Lost": ["files /dev/shm/psm_*: 8.0 MiB a step"],
}
TORCHS = {
    "Tensors": ["`list` Tensors.seen grows by 1 item a step (torch tensor on cpu, 8.0 MiB each)"],
    "Losses": ["`list` Losses.seen grows by 1 item", "its tensors keep the graphs that computed them"],
}


@pytest.mark.parametrize("name", LEAKS)
def test_a_leak_is_named(name):
    """Where it lies, or where it is allocated; how much it is; and what the look has cost."""
    ((sentence, where, bytes_per_step, evidence),), _ = watched(name)
    assert all(part in sentence for part in LEAKS[name]), sentence
    assert where
    assert bytes_per_step > (MIB if name == "Small" else 6 * MIB)
    assert "steps were looked at, for" in evidence[-1]


@pytest.mark.parametrize("name", TORCHS)
def test_torchs_leaks_are_named(name):
    """Tracemalloc does not see them; the census does."""
    pytest.importorskip("torch")
    ((sentence, *_),), _ = watched(name)
    assert all(part in sentence for part in TORCHS[name]), sentence


def test_objects_in_a_chain_have_the_way_to_the_newest_as_evidence():
    """No container grows."""
    ((*_, evidence),), _ = watched("Chain")
    assert any("1 more `Node` a step, one of them held by Chain.newest" in one for one in evidence)


@pytest.mark.parametrize("name", ["Bounded", "Replaced", "Preallocated"])
def test_what_only_looks_like_a_leak_is_no_finding(name):
    """A cache that is full, a batch that is replaced, a buffer that is filled."""
    found, hunted = watched(name)
    assert found == []
    assert not hunted or name == "Bounded"  # it grew until it was full


def test_a_cache_that_fills_is_said_to_end():
    """Nobody can tell it from a leak yet, but that it has a most."""
    ((sentence, *_),), _ = watched("Filling")
    assert (
        "it may end by itself: the cache (of at most 100) of __main__.Filling.cached has a most" in sentence
    )


def test_where_nothing_grows_nothing_is_switched_on():
    """Thousands of steps."""
    finder = LeakFinder()
    for step in range(2000):
        assert finder.step_ended(step, None) is None
        assert not finder._hunt
    assert not tracemalloc.is_tracing()


@pytest.mark.parametrize(
    "quantity", [Quantity.NODE, Quantity.STORE, Quantity.DISK], ids=lambda one: one.value
)
def test_what_others_name_is_not_hunted(quantity):
    """The store has its ledger; the node is a sum."""
    finder = LeakFinder()
    finder.step_ended(0, Growing(quantity=quantity, pid=os.getpid()))
    assert not finder._hunt


@pytest.mark.usefixtures("own_heap")
def test_growth_that_ended_is_no_finding_and_is_not_hunted_again_at_once():
    """A load that was done just after its growth was proven."""
    now = [0.0]
    finder = LeakFinder(steps=2, share=1e9, clock=lambda: now[0])
    for step in range(30):
        now[0] += 10
        assert finder.step_ended(step, GROWING) is None
    assert not finder._hunt
    assert not tracemalloc.is_tracing()
    now[0] += AGAIN_S
    finder.step_ended(31, GROWING)
    assert not finder._hunt  # too few steps
    finder.step_ended(200, GROWING)
    assert finder._hunt
    finder.close()
    assert not tracemalloc.is_tracing()


@pytest.mark.usefixtures("own_heap")
def test_a_quantity_alone_is_enough():
    """Whoever asks may know no pace."""
    finder, kept = LeakFinder(steps=2, share=1e9), []
    found = None
    for step in range(40):
        kept.append(bytearray(2 * MIB))
        found = finder.step_ended(step, Growing(quantity=Quantity.NATIVE, pid=os.getpid())) or found
        if found:
            break
    assert "kept" in found.sentence
    assert found.sentence.startswith("native of this process grows: ")
    assert found.bytes_per_step == pytest.approx(2 * MIB, rel=0.3)
    assert not tracemalloc.is_tracing()


def test_a_failure_ends_the_hunt_and_is_told(monkeypatch):
    """The caller counts it; tracing is off, and the next step is as if nothing was."""
    finder = LeakFinder(share=1e9)
    finder.step_ended(0, GROWING)
    assert tracemalloc.is_tracing()

    def broken(*_, **__):
        raise OSError("no")

    with monkeypatch.context() as patched:
        patched.setattr(HeapCensus, "look", broken)
        with pytest.raises(OSError, match="no"):
            finder.step_ended(1, GROWING)
    assert not finder._hunt
    assert not tracemalloc.is_tracing()
    assert finder.step_ended(2, None) is None


def test_a_forked_child_hunts_nothing():
    """It has the object, and other steps."""
    finder = LeakFinder()
    finder.step_ended(0, GROWING)
    pid = os.fork()
    if pid == 0:
        finder.step_ended(1, GROWING)
        os._exit((finder._hunt is not None) + 2 * tracemalloc.is_tracing())
    _, status = os.waitpid(pid, 0)
    finder.close()
    assert os.waitstatus_to_exitcode(status) == 0


def test_another_processs_growth_is_looked_at_from_outside():
    """Nothing is traced here for it, and no heap is searched."""
    child = subprocess.Popen(["sleep", "60"])
    try:
        finder = LeakFinder(steps=2)
        growing = Growing(quantity=Quantity.PRIVATE, pid=child.pid, who="engine", bytes_per_step=MIB)
        for step in range(3):
            assert finder.step_ended(step, growing) is None
            assert not tracemalloc.is_tracing()
        assert not finder._hunt
    finally:
        child.kill()
        child.wait(10)
