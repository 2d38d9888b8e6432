"""What a command printed, kept for diagnosis: its beginning and its end, on a file that nobody else sees.

However much is printed, the file stays below ``HEAD_BYTES`` and twice ``TAIL_BYTES``. What two streams print
is kept line by line, so that neither cuts a line of the other in two.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
from pathlib import Path

from rayguard.harmless import harmless
from rayguard.logs.files import LogFile

HEAD_BYTES = 1 << 20
TAIL_BYTES = 8 << 20
_BLOCK_BYTES = 1 << 20
_LINE_BYTES = 1 << 16  # of a line whose end has not come: more is kept at once
NAME = "the command's output"


class KeptOutput:
    """Beginning and end of one output. Several threads feed it; a full disk costs what is kept, no more."""

    def __init__(self) -> None:
        self._file: int | None = None
        self._lock = threading.Lock()
        self._begun: dict[int, bytearray] = {}  # by stream: the line whose end has not come
        self._size = 0  # of the file
        self._head = 0  # where the beginning ends; 0: nothing is left out yet
        self._tail = 0  # where the end begins
        self._left_out = 0
        with harmless("kept output"):
            self._file, path = tempfile.mkstemp(prefix="rayguard-run-")
            os.unlink(path)  # noqa: PTH108 - it goes with the last descriptor, whatever ends this process

    def feed(self, stream: int, chunk: bytes) -> None:
        """Keep what ``stream`` printed next."""
        with self._lock:
            begun = self._begun.setdefault(stream, bytearray())
            begun += chunk
            end = begun.rfind(b"\n") + 1 or (len(begun) if len(begun) > _LINE_BYTES else 0)
            if end:
                self._write(bytes(begun[:end]))
                del begun[:end]

    def end(self) -> None:
        """Keep the last lines also where they have no end."""
        with self._lock:
            for begun in self._begun.values():
                if begun:
                    self._write(bytes(begun) + b"\n")
                    begun.clear()
            with harmless("kept output"):
                if self._file is not None and self._size > HEAD_BYTES + TAIL_BYTES:
                    self._cut(self._file)

    def log(self) -> LogFile | None:
        """Return it as a log to read; None where nothing was kept."""
        if self._file is None or not self._size:
            return None
        return LogFile(name=NAME, path=Path(f"/proc/self/fd/{self._file}"), size_bytes=self._size)

    def last(self, most: int) -> bytes:
        """Return up to ``most`` of its last bytes."""
        if self._file is None:
            return b""
        return os.pread(self._file, most, max(0, self._size - most))

    def close(self) -> None:
        """Let it go."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                os.close(self._file)
            self._file = None

    def _write(self, lines: bytes) -> None:
        with harmless("kept output"):
            if self._file is None:
                return
            self._size += os.pwrite(self._file, lines, self._size)
            if self._size > HEAD_BYTES + 2 * TAIL_BYTES:
                self._cut(self._file)

    def _cut(self, file: int) -> None:
        """Leave out what lies between the beginning and the last ``TAIL_BYTES``."""
        begin = self._size - TAIL_BYTES
        block = os.pread(file, _BLOCK_BYTES, begin)
        cut = block.find(b"\n") + 1  # the rest begins with a line
        if not self._head:
            head = os.pread(file, HEAD_BYTES, 0)
            self._head = self._tail = head.rfind(b"\n") + 1 or len(head)
        self._left_out += begin + cut - self._tail
        note = f"[rayguard run: {self._left_out} bytes are left out here]\n".encode()
        at = self._tail = self._head + os.pwrite(file, note, self._head)
        block = block[cut:]
        while block:
            at += os.pwrite(file, block, at)
            begin += _BLOCK_BYTES
            block = os.pread(file, _BLOCK_BYTES, begin)
        os.ftruncate(file, at)
        self._size = at
