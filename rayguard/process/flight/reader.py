"""Reading what flight recorders left: from a file, in any state, to a ``Recording``.

Trusts nothing: whatever the bytes are, what comes out was written whole. The bytes are ``layout``.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from rayguard.private import closed_after, open_regular
from rayguard.process import owned_files
from rayguard.process.flight import layout
from rayguard.process.flight.layout import LiveWord, RecordKind
from rayguard.process.flight.recording import (
    CallsPoint,
    CollectionPoint,
    MemoryPoint,
    MethodState,
    Recording,
    RoundPoint,
    TextPoint,
)
from rayguard.process.identity import ProcessId, owner_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_NS = 1e9


def recordings(home: Path) -> list[Path]:
    """Return the recordings of the processes of this boot, oldest first."""
    return [path for _, path in _by_writer(home)]


def recording_of(home: Path, pid: int, *, actor_id: str = "") -> Recording | None:
    """Return the newest recording of a process that had this pid; of that actor only, if one is named."""
    for writer, path in reversed(_by_writer(home)):
        found = read_recording(path) if writer.pid == pid else None
        if found is not None and actor_id in ("", found.actor_id):
            return found
    return None


def read_recording(path: Path) -> Recording | None:
    """Return what the file at ``path`` says; None where it is no recording. Raises ``OSError``."""
    file = open_regular(path)
    if file is None:
        return None
    with closed_after(file):
        return parse(os.pread(file, layout.SIZE_BYTES, 0))


def parse(data: bytes, alive: Callable[[ProcessId], bool] = ProcessId.alive) -> Recording | None:
    """Return what ``data`` says; None where it is no recording. Raises nothing, whatever the bytes are."""
    head = layout.read_header(data)
    who = None if head is None else owner_of(head.mark)
    return None if head is None or who is None else _Parsed(data, head).recording(who, alive=alive(who))


def _by_writer(home: Path) -> list[tuple[ProcessId, Path]]:
    try:
        paths = [path for path in (home / "flight").iterdir() if path.suffix == f".{layout.ENDING}"]
    except OSError:
        return []
    found = ((owned_files.writer_of(path.name, layout.KIND, layout.ENDING), path) for path in paths)
    return sorted(((who, path) for who, path in found if who is not None), key=lambda one: one[0].started)


class _Parsed:
    """A recording while it is read."""

    def __init__(self, data: bytes, head: layout.Header) -> None:
        self._zero = head.wall_ns - head.monotonic_ns
        self._head = head
        self._words = layout.read_words(data)
        self._labels = layout.read_ring(data, layout.LABELS)
        self._texts = layout.read_ring(data, layout.TEXTS)
        self._rounds = layout.read_ring(data, layout.ROUNDS)
        self._numbers = layout.read_ring(data, layout.NUMBERS)
        self._names = layout.names(self._labels)

    def recording(self, who: ProcessId, *, alive: bool) -> Recording:
        methods = tuple(self._method(at) for at in sorted(self._names))
        every = [one.at_ns for one in (*self._labels, *self._texts, *self._rounds, *self._numbers)]
        last_ns = max((self._head.monotonic_ns, *every))
        return Recording(
            process=who,
            alive=alive,
            title=self._label(RecordKind.TITLE),
            actor_id=self._label(RecordKind.ACTOR),
            stderr=self._label(RecordKind.STDERR),
            group=self._label(RecordKind.GROUP),
            began_at=self._head.wall_ns / _NS,
            last_at=max((self._wall(last_ns), *(max(m.begun_at, m.ended_at) for m in methods))),
            step=self._words[LiveWord.STEP] - 1,
            collecting_since=self._wall(self._words[LiveWord.GC_SINCE]),
            ending=next((one.text for one in self._texts if one.kind is RecordKind.END), ""),
            group_kills=self._kills(LiveWord.GROUP_KILLS),
            node_kills=self._kills(LiveWord.NODE_KILLS),
            methods=methods,
            memory=tuple(self._memory(*one) for one in self._all(RecordKind.MEMORY)),
            calls=tuple(
                CallsPoint(at, self._names.get(method, ""), *counts)
                for at, (method, *counts) in self._all(RecordKind.CALLS)
            ),
            collections=tuple(CollectionPoint(at, *some) for at, some in self._all(RecordKind.COLLECTION)),
            steps=self._rounds_of(RecordKind.STEPS),
            call_rounds=self._rounds_of(RecordKind.CALL_ROUND),
            events=tuple(
                TextPoint(self._wall(one.at_ns), one.text)
                for one in self._texts
                if one.kind is RecordKind.EVENT
            ),
        )

    def _all(self, kind: RecordKind) -> list[tuple[float, tuple[Any, ...]]]:
        """Return when, and the numbers (``layout``), of all records of one kind."""
        records = (*self._rounds, *self._numbers)
        return [(self._wall(one.at_ns), one.numbers) for one in records if one.kind is kind]

    def _wall(self, at_ns: int) -> float:
        return (self._zero + at_ns) / _NS if at_ns else 0.0

    def _label(self, kind: RecordKind) -> str:
        return next((one.text for one in self._labels if one.kind is kind), "")

    def _kills(self, word: LiveWord) -> int | None:
        return self._words[word] - 1 if self._words[word] else None

    def _method(self, at: int) -> MethodState:
        begun, ended, begun_ns, ended_ns = self._words[at : at + 4]
        return MethodState(self._names[at], begun, ended, self._wall(begun_ns), self._wall(ended_ns))

    def _memory(self, at: float, numbers: tuple[Any, ...]) -> MemoryPoint:
        step, private, shared, device, node_ratio, method = numbers
        name = self._names.get(method, "")
        return MemoryPoint(at, private, shared, device, node_ratio, step, name)

    def _rounds_of(self, kind: RecordKind) -> tuple[RoundPoint, ...]:
        return tuple(
            RoundPoint(at, first, last, private, self._names.get(method, ""))
            for at, (first, last, private, _most, method) in self._all(kind)
        )
