"""The mapped file of one flight recording: its live words, and the rings that records are written into.

``<home>/flight/flight-<boot>-<pid>-<started>.ring``, 256 KiB that are allocated before the first store. Any
thread writes without a lock, also in a garbage collection. What the bytes mean is ``layout``.
"""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING

from rayguard.process.flight import layout
from rayguard.process.identity import ProcessId, owner_mark
from rayguard.process.mapped_file import MappedFile

if TYPE_CHECKING:
    import mmap
    from pathlib import Path

    from rayguard.process.flight.layout import RecordKind, Ring


class Rings:
    """One recording of the calling process. The constructor raises ``OSError``: a full disk, say."""

    def __init__(self, path: Path) -> None:
        self._file: MappedFile | None = MappedFile(
            path, size_bytes=layout.SIZE_BYTES, allocate_bytes=layout.SIZE_BYTES
        )
        self._map: mmap.mmap | None = self._file.map
        first = layout.Header(owner_mark(ProcessId.me()), time.time_ns(), time.monotonic_ns())
        packed = layout.header(first)
        self._map[: len(packed)] = packed
        self.words = self._file.words(*layout.words_span())
        self._file.publish()
        self._counts = {ring.at: itertools.count() for ring in layout.RINGS}

    @property
    def open(self) -> bool:
        """Whether what is written gets into the file."""
        return self._file is not None

    def write(self, ring: Ring, kind: RecordKind, at_ns: int, *numbers: float) -> None:
        """Write a record of numbers."""
        self._put(ring, kind, at_ns, layout.packed(kind, *numbers))

    def write_text(self, ring: Ring, kind: RecordKind, line: str) -> None:
        """Write a record of text."""
        self._put(ring, kind, time.monotonic_ns(), layout.packed_text(line, ring))

    def detach(self) -> None:
        """Write no more: calls that still run store into memory of nobody."""
        # Nothing is unmapped here: a thread in the middle of a store holds the map, and it goes after that.
        self.words, self._map = memoryview(bytearray(8 * layout.WORDS)).cast("Q"), None
        file, self._file = self._file, None
        if file is not None:
            file.abandon()

    def _put(self, ring: Ring, kind: RecordKind, at_ns: int, body: bytes) -> None:
        space, number = self._map, next(self._counts[ring.at])
        if space is not None and (ring is not layout.LABELS or number < ring.slots):
            record, at = layout.slot(kind, number, at_ns, body), ring.place(number)
            space[at : at + len(record)] = record
