"""Which lines allocate what stays: tracemalloc, switched on for a few steps and off again.

Sees what Python's allocators hand out, bytes, bytearrays and numpy's arrays among it; not what C code takes
by itself: torch's tensors (``heap_census`` names those), ctypes, mmap. While it is on, an allocation costs
1.4 us (0.15 us without; 0.8 us with one frame instead of four), a snapshot 0.4 us for each block still there.

A tracemalloc that the user has started is read if it is small, and never ended. Should the user start one
while ours is on, ours gives way.
"""

from __future__ import annotations

import contextlib
import inspect
import linecache
import os
import sysconfig
import threading
import time
import tracemalloc
import weakref
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from types import CodeType
from typing import TYPE_CHECKING, Any

from rayguard.memory.growth.finding import GrowingLine
from rayguard.memory.growth.growing import rates

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

FRAMES = 4  # json.loads and np.zeros are deeper than one, and the user wants the line that is theirs
MOST_BYTES = 16 << 20  # of traces: some 250,000 blocks
MOST_S = 600.0  # then it ends, whether or not the step has ended
_CHECK_S = 0.05
_JOIN_S = 1.0
_LONGEST_SOURCE = 20_000  # lines: a longer file is not parsed for the name of a function
_MOST_LINES = 5
_LEAST = 1 << 14  # bytes a step: less explains nothing
_HERE = f"rayguard{os.sep}memory{os.sep}growth"
_NOT_TOLD = ("tracemalloc.py", "<frozen importlib", "linecache.py")

Frames = tuple[tuple[str, int], ...]
_Trace = tuple[int, int, Frames, int]


@dataclass(slots=True)
class _Snapshot:
    """What was traced at the end of ``step``: bytes and names of files, nothing of the user's."""

    step: int
    traces: Sequence[_Trace]


class Lines:
    """One hunt: ``begin``, ``take`` at the end of each step, ``end``. Keeps numbers and names only."""

    def __init__(self, *, frames: int = FRAMES, most_bytes: int = MOST_BYTES, most_s: float = MOST_S) -> None:
        self._frames, self._most_bytes, self._most_s = frames, most_bytes, most_s
        self._taken: tuple[_Snapshot, ...] = ()  # a list would be one that grows
        self._theirs = False
        self._on = False
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._guard: threading.Thread | None = None
        self._start: Callable[..., None] = tracemalloc.start
        self.traced = 0  # steps
        self.note = ""  # why there are fewer lines than there could be

    def begin(self) -> None:
        """Switch tracing on, unless the user traces already."""
        if tracemalloc.is_tracing():
            self._theirs = self._on = True
            self.note = "the tracemalloc that was on already was read and left on"
            return
        tracemalloc.start(self._frames)
        self._on = True
        self._start, ours = tracemalloc.start, self._give_way
        tracemalloc.start = ours
        _HUNTS.add(self)
        self._guard = threading.Thread(target=self._watch, name="rayguard-tracing", daemon=True)
        self._guard.start()

    def take(self, step: int) -> None:
        """Remember what is allocated at the end of ``step``."""
        with self._lock:
            if not self._on:
                return
            if not tracemalloc.is_tracing():
                self._stopped("somebody else ended the tracing")
            elif tracemalloc.get_tracemalloc_memory() > self._most_bytes:
                self._too_many()
            else:
                self._snapshot(step)

    def end(self) -> tuple[GrowingLine, ...]:
        """Switch off, and return the lines that had more after every step, those with most first."""
        self.close()
        taken, self._taken = self._taken, ()
        return _lines(taken)

    def close(self) -> None:
        """Switch off; what was traced is of use still."""
        with self._lock:
            self._stopped(self.note)
        if self._guard is not None and self._guard is not threading.current_thread():
            self._guard.join(_JOIN_S)

    def _snapshot(self, step: int) -> None:
        taken: Any = tracemalloc.take_snapshot().traces
        # As the C code made them: 1 us less for each than its public copy, with tracing on 8 us
        self._taken = (*self._taken, _Snapshot(step, taken._traces))  # noqa: SLF001
        self.traced += 1

    def _too_many(self) -> None:
        blocks = f"more than {self._most_bytes >> 20} MiB of traces"
        enough = len(self._taken) > 1
        self._stopped("" if enough else f"too many small allocations to trace for a whole step ({blocks})")

    def _stopped(self, note: str) -> None:
        """End our tracing. Runs under the lock."""
        self._over.set()
        if not self._on:
            return
        self._on, self.note = False, note
        if self._theirs:
            return
        _HUNTS.discard(self)
        # Bound methods are made anew each time: the same one is equal, not identical
        if tracemalloc.start == self._give_way:
            tracemalloc.start = self._start
        tracemalloc.stop()

    def _give_way(self, nframe: int = 1) -> None:
        """Stand for ``tracemalloc.start``: from here on the tracing is the user's."""
        with self._lock:
            self._stopped("gave way to the user's own tracemalloc")
        self._start(nframe)

    def _watch(self) -> None:
        until = time.monotonic() + self._most_s
        while not self._over.wait(_CHECK_S):
            with self._lock:
                if tracemalloc.get_tracemalloc_memory() > self._most_bytes:
                    self._too_many()
                elif time.monotonic() > until:
                    self._stopped(f"the tracing was ended after {self._most_s:.0f} s")

    def forked(self) -> None:
        """A child has the tracing, and no use for it."""
        self._lock, self._over = threading.Lock(), threading.Event()  # their owners may not be in the child
        self._guard = None
        self.close()


_HUNTS: weakref.WeakSet[Lines] = weakref.WeakSet()


def _after_fork() -> None:
    for hunt in list(_HUNTS):
        hunt.forked()


os.register_at_fork(after_in_child=_after_fork)


def _lines(taken: Sequence[_Snapshot]) -> tuple[GrowingLine, ...]:
    if len(taken) < 2:  # noqa: PLR2004 - one says nothing about what the next step frees
        return ()
    first, *_, last = sums = [_sums(one.traces) for one in taken]
    steps = max(1, taken[-1].step - taken[0].step)
    found: dict[tuple[str, int], GrowingLine] = {}
    for frames, (_, blocks) in last.items():
        rate = rates([(one.step, of.get(frames, (0, 0))[0]) for one, of in zip(taken, sums, strict=True)])
        if rate >= _LEAST:
            more = max(0.0, (blocks - first.get(frames, (0, 0))[1]) / steps)
            line = _line(frames, rate, more)
            key = line.file, line.line  # it may be reached in many ways
            found[key] = _joined(found[key], line) if key in found else line
    most = sorted(found.values(), key=lambda line: -line.bytes_per_step)[:_MOST_LINES]
    return tuple(replace(line, function=function_at(line.file, line.line)) for line in most)


def _sums(traces: Iterable[_Trace]) -> dict[Frames, tuple[int, int]]:
    """Return bytes and blocks by frames. The C code makes each tuple of frames once: its id is its name."""
    names: dict[int, Frames] = {}
    found: dict[int, tuple[int, int]] = {}
    for _, size, frames, *_ in traces:
        name = id(frames)
        bytes_, blocks = found.get(name, (0, 0))
        found[name] = bytes_ + size, blocks + 1
        names[name] = frames
    told: dict[Frames, tuple[int, int]] = {}
    for name, (bytes_, blocks) in found.items():
        frames = names[name]
        if not any(_is_ours(file) for file, _ in frames[:1]):
            before = told.get(frames, (0, 0))
            told[frames] = bytes_ + before[0], blocks + before[1]
    return told


def _is_ours(file: str) -> bool:
    return _HERE in file or file.startswith(_NOT_TOLD[1]) or file.endswith((_NOT_TOLD[0], _NOT_TOLD[2]))


def _line(frames: Frames, rate: float, blocks: float) -> GrowingLine:
    """Return the innermost line of the user's own; where a library allocates, it is told through which."""
    allocates = frames[0]
    own, caller = (*(frame for frame in frames if not _is_library(frame[0])), None, None)[:2]
    own = own or allocates
    return GrowingLine(
        file=own[0],
        line=own[1],
        bytes_per_step=rate,
        blocks_per_step=blocks,
        through="" if own == allocates else _named(allocates),
        called_at=_named(caller) if caller is not None else "",
    )


def _named(frame: tuple[str, int]) -> str:
    return f"{PurePath(frame[0]).name}:{frame[1]}"


def _joined(one: GrowingLine, other: GrowingLine) -> GrowingLine:
    return replace(
        max(one, other, key=lambda line: line.bytes_per_step),
        bytes_per_step=one.bytes_per_step + other.bytes_per_step,
        blocks_per_step=one.blocks_per_step + other.blocks_per_step,
    )


_LIBRARIES = (
    *{sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")},
    str(Path(sysconfig.get_path("stdlib")).resolve()) + os.sep,
    str(Path(__file__).resolve().parents[2]) + os.sep,  # the guard stands between the user's lines
    *("<frozen ", "<__array_function__"),
)


def _is_library(file: str) -> bool:
    return file.startswith(_LIBRARIES) or f"{os.sep}site-packages{os.sep}" in file


def function_at(file: str, line: int) -> str:
    """Return the name of the function that ``line`` of ``file`` is in, as far as its source can be read.

    Not by ``ast.parse``: up to Python 3.11.7, two threads in it at once make each other's fail (gh-106905).
    """
    lines = linecache.getlines(file)
    if not lines or len(lines) > _LONGEST_SOURCE:
        return ""
    with contextlib.suppress(SyntaxError, ValueError, RecursionError):
        module = compile("".join(lines), file, "exec", flags=0, dont_inherit=True, optimize=0)
        return max((found for found in _functions(module) if line in found[2]), default=(0, "", ()))[1]
    return ""


def _functions(code: CodeType) -> Iterator[tuple[int, str, range]]:
    """Yield each function within ``code``: its first line, its name, and its lines."""
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            last = max((line for _, _, line in inner.co_lines() if line is not None), default=0)
            if inner.co_flags & inspect.CO_NEWLOCALS and not inner.co_name.startswith("<"):
                yield inner.co_firstlineno, inner.co_name, range(inner.co_firstlineno, last + 1)
            yield from _functions(inner)
