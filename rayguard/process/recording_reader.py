"""Reading what flight recorders left: from a file, in any state, to a ``Recording``.

Trusts nothing: whatever the bytes are, what comes out was written whole. The bytes are ``recorder_layout``.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from rayguard.private import open_regular
from rayguard.process import kept
from rayguard.process import recorder_layout as layout
from rayguard.process.identity import ProcessId, owner_of
from rayguard.process.recorder_layout import Kind, Record, Word
from rayguard.process.recording import (
    CallsPoint,
    CollectionPoint,
    MemoryPoint,
    MethodState,
    Recording,
    RoundPoint,
    TextPoint,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

_NS = 1e9


def recordings(home: Path) -> list[Path]:
    """Return the recordings of the processes of this boot, oldest first."""
    folder = home / "flight"
    try:
        found = [path for path in folder.iterdir() if _writer(path) and path.suffix == f".{layout.ENDING}"]
    except OSError:
        return []
    return sorted(found, key=lambda path: (_writer(path) or ProcessId(0, 0)).started)


def recording_of(home: Path, pid: int, *, actor_id: str = "") -> Recording | None:
    """Return the newest recording of a process that had this pid; of that actor only, if one is named."""
    for path in reversed(recordings(home)):
        who = _writer(path)
        found = read_recording(path) if who is not None and who.pid == pid else None
        if found is not None and actor_id in ("", found.actor_id):
            return found
    return None


def read_recording(path: Path) -> Recording | None:
    """Return what the file at ``path`` says; None where it is no recording. Raises ``OSError``."""
    file = open_regular(path)
    if file is None:
        return None
    try:
        data = os.pread(file, layout.SIZE_BYTES, 0)
    finally:
        os.close(file)
    return parse(data)


def parse(data: bytes, alive: Callable[[ProcessId], bool] = ProcessId.alive) -> Recording | None:
    """Return what ``data`` says; None where it is no recording. Raises nothing, whatever the bytes are."""
    head = layout.read_header(data)
    who = None if head is None else owner_of(head.mark)
    return None if head is None or who is None else _Parsed(data, head).recording(who, alive=alive(who))


def _writer(path: Path) -> ProcessId | None:
    return kept.writer_of(path.name, layout.KIND, layout.ENDING)


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
            title=self._label(Kind.TITLE),
            actor_id=self._label(Kind.ACTOR),
            stderr=self._label(Kind.STDERR),
            group=self._label(Kind.GROUP),
            began_at=self._head.wall_ns / _NS,
            last_at=max((self._wall(last_ns), *(max(m.begun_at, m.ended_at) for m in methods))),
            step=self._words[Word.STEP] - 1,
            collecting_since=self._wall(self._words[Word.GC_SINCE]),
            ending=next((str(one.body) for one in self._texts if one.kind is Kind.END), ""),
            group_kills=self._kills(Word.GROUP_KILLS),
            node_kills=self._kills(Word.NODE_KILLS),
            methods=methods,
            **self._curves(),
        )

    def _curves(self) -> dict[str, Any]:
        numbers = self._numbers
        return {
            "memory": tuple(map(self._memory, _of(numbers, Kind.MEMORY))),
            "calls": tuple(map(self._calls, _of(numbers, Kind.CALLS))),
            "collections": tuple(map(self._collection, _of(numbers, Kind.COLLECTION))),
            "steps": tuple(map(self._round, _of(self._rounds, Kind.STEPS))),
            "call_rounds": tuple(map(self._round, _of(self._rounds, Kind.CALL_ROUND))),
            "events": tuple(
                TextPoint(self._wall(one.at_ns), str(one.body)) for one in _of(self._texts, Kind.EVENT)
            ),
        }

    def _wall(self, at_ns: int) -> float:
        return (self._zero + at_ns) / _NS if at_ns else 0.0

    def _label(self, kind: Kind) -> str:
        return next((str(one.body) for one in self._labels if one.kind is kind), "")

    def _kills(self, word: Word) -> int | None:
        return self._words[word] - 1 if self._words[word] else None

    def _name(self, at: int) -> str:
        return self._names.get(at, "")

    def _method(self, at: int) -> MethodState:
        begun, ended, begun_ns, ended_ns = self._words[at : at + 4]
        return MethodState(
            name=self._names[at],
            begun=begun,
            ended=ended,
            begun_at=self._wall(begun_ns),
            ended_at=self._wall(ended_ns),
        )

    def _memory(self, one: Record) -> MemoryPoint:
        body: Any = one.body
        return MemoryPoint(
            at=self._wall(one.at_ns),
            private=body.private,
            shared=body.shared,
            device=body.device,
            node_ratio=body.node_ratio,
            step=body.step,
            method=self._name(body.method),
        )

    def _round(self, one: Record) -> RoundPoint:
        body: Any = one.body
        return RoundPoint(
            at=self._wall(one.at_ns),
            first=body.first,
            last=body.last,
            private=body.private_min,
            method=self._name(body.method),
        )

    def _calls(self, one: Record) -> CallsPoint:
        body: Any = one.body
        name = self._name(body.method)
        return CallsPoint(
            at=self._wall(one.at_ns), method=name, begun=body.begun, ended=body.ended, running=body.running
        )

    def _collection(self, one: Record) -> CollectionPoint:
        body: Any = one.body
        return CollectionPoint(
            at=self._wall(one.at_ns), seconds=body.seconds, times=body.times, found=body.found
        )


def _of(records: Iterable[Record], kind: Kind) -> list[Record]:
    return [one for one in records if one.kind is kind]
