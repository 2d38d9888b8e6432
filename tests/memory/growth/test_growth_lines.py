"""Lines: tracemalloc for a few steps, and off again whatever happens."""

import gc
import inspect
import json
import os
import threading
import tracemalloc
import weakref

import pytest

from rayguard.memory.growth.lines import Lines, function_at

MIB = 1 << 20


@pytest.fixture(autouse=True)
def off():
    """No test leaves it on."""
    start = tracemalloc.start
    yield
    assert not tracemalloc.is_tracing()
    assert tracemalloc.start == start


class Kept(list):
    """What a test leaks; can be watched by a weak reference."""


def hunt(step, *, steps=3, **kwargs):
    """Trace ``steps`` calls of ``step``."""
    lines = Lines(**kwargs)
    lines.begin()
    try:
        for number in range(steps):
            step(number)
            lines.take(number)
        return lines.end(), lines
    finally:
        lines.close()


def test_a_line_that_keeps_what_it_allocates_is_named():
    """With its function, and how much a step."""
    kept = []

    def update(_number):
        kept.append(bytearray(MIB))

    (line, *_), lines = hunt(update)
    assert line.where == f"test_growth_lines.py:{update.__code__.co_firstlineno + 1} in update"
    assert line.bytes_per_step == pytest.approx(MIB, rel=0.01)
    assert (lines.traced, lines.note, lines._on) == (3, "", False)


def test_what_is_replaced_each_step_is_no_leak():
    """The batch of a step is gone when the next is there."""
    held = {}

    def update(number):
        held["batch"] = [bytearray(MIB) for _ in range(4)]

    assert hunt(update, steps=4)[0] == ()


def test_what_a_library_allocates_is_told_by_the_users_line():
    """Nobody can change json."""
    kept, text = [], json.dumps({str(k): "x" * 100 for k in range(5000)})

    def update(_number):
        kept.append(json.loads(text))

    (line, *_), _ = hunt(update)
    assert line.function == "update"
    assert line.through.startswith("decoder.py:")
    assert line.blocks_per_step > 5000


def test_a_helper_that_allocates_is_told_with_its_caller():
    """All buffers may come from one helper."""
    kept = []

    def make():
        return bytearray(MIB)

    def update(_number):
        kept.append(make())

    (line, *_), _ = hunt(update)
    assert line.function == "make"
    assert line.called_at == f"test_growth_lines.py:{update.__code__.co_firstlineno + 1}"


def test_numpys_arrays_are_seen():
    """They come from malloc, and numpy tells tracemalloc."""
    np = pytest.importorskip("numpy")
    kept = []

    def update(_number):
        kept.append(np.ones(MIB // 8))

    (line, *_), _ = hunt(update)
    assert line.function == "update"
    assert line.bytes_per_step == pytest.approx(MIB, rel=0.01)


def test_a_tracing_of_the_users_is_read_and_left_on():
    """With the frames they wanted."""
    tracemalloc.start(7)
    try:
        kept = []
        (line, *_), lines = hunt(lambda _number: kept.append(bytearray(MIB)))
        assert line.bytes_per_step == pytest.approx(MIB, rel=0.01)
        assert tracemalloc.is_tracing()
        assert tracemalloc.get_traceback_limit() == 7
        assert "left on" in lines.note
    finally:
        tracemalloc.stop()


def test_ours_gives_way_to_the_users():
    """Started while ours is on: theirs has the frames they want, and nobody ends it."""
    lines = Lines()
    lines.begin()
    tracemalloc.start(7)
    try:
        assert tracemalloc.get_traceback_limit() == 7
        assert not lines._on
        lines.take(0)
        assert lines.end() == ()
        assert tracemalloc.is_tracing()
        assert "gave way" in lines.note
    finally:
        tracemalloc.stop()


def test_a_tracing_that_somebody_else_ended_is_noted():
    """They may not know that it is ours."""
    lines = Lines()
    lines.begin()
    tracemalloc.stop()
    lines.take(0)
    assert "somebody else" in lines.note
    assert lines.end() == ()


def test_too_many_allocations_end_it_within_a_step():
    """The traces must not eat what memory is left."""
    lines = Lines(most_bytes=MIB)
    lines.begin()
    kept = [str(k) for k in range(100_000)]
    assert lines._over.wait(30)
    lines.close()
    assert not tracemalloc.is_tracing()
    assert "too many small allocations" in lines.note
    assert kept


def test_a_step_that_never_ends_is_not_traced_for_ever():
    """A process that went on to something else."""
    lines = Lines(most_s=0.0)
    lines.begin()
    assert lines._over.wait(30)
    lines.close()
    assert "ended after" in lines.note


def test_a_forked_child_is_not_traced():
    """Workers of a data loader would be slow for all their life."""
    lines = Lines()
    lines.begin()
    pid = os.fork()
    if pid == 0:
        os._exit(int(tracemalloc.is_tracing()))
    _, status = os.waitpid(pid, 0)
    still = tracemalloc.is_tracing()
    lines.close()
    assert os.waitstatus_to_exitcode(status) == 0
    assert still


def test_nothing_is_kept_alive():
    """Snapshots are numbers and names."""
    gc.disable()
    try:
        lines = Lines()
        lines.begin()
        kept = Kept([bytearray(MIB)])
        seen = weakref.ref(kept)
        lines.take(0)
        lines.take(1)
        del kept
        assert seen() is None
        lines.end()
    finally:
        gc.enable()


def test_its_thread_ends_with_it():
    """Nothing is left that costs something."""
    hunt(lambda _number: None)
    assert not [one for one in threading.enumerate() if one.name == "rayguard-tracing"]


def test_a_function_is_named_by_its_innermost_def():
    """Nested functions, no function, no source."""

    def inner():
        return 1

    file = inspect.getsourcefile(inner)
    assert function_at(file, inner.__code__.co_firstlineno + 1) == "inner"
    assert function_at(file, 1) == ""
    assert (
        function_at(file, inner.__code__.co_firstlineno - 1)
        == "test_a_function_is_named_by_its_innermost_def"
    )
    assert function_at("/nowhere/at.all", 1) == ""
