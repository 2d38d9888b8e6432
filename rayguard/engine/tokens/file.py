"""The file under a token log: mapped, grown, put in the place of another one.

What was committed survives a SIGKILL of its writer at any instant (``rayguard.process.mapped_file``). What
the bytes mean is ``frames``; when to write them anew is ``log``.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from rayguard.engine.tokens.frames import (
    BEHIND_AT,
    COMMIT_AT,
    HEADER_BYTES,
    commit,
    committed,
    frame,
    header,
)
from rayguard.private import open_regular
from rayguard.process.mapped_file import MappedFile

if TYPE_CHECKING:
    from pathlib import Path

LIMIT_BYTES_MAX = 1 << 30


class TokenLogFile(MappedFile):
    """A mapped file that takes frames."""

    def __init__(self, path: Path, *, limit_bytes: int, allocate_bytes: int, mark: str) -> None:
        super().__init__(path, size_bytes=limit_bytes, allocate_bytes=allocate_bytes)
        self.end = HEADER_BYTES
        self._generation = 0
        self.map[:HEADER_BYTES] = header(mark)
        self._words = self.words(0, HEADER_BYTES)

    def put(self, kind: int, body: bytes) -> int:
        """Write and commit a frame, for which there must be room; returns where its body lies."""
        packed = frame(kind, body, self._generation)
        at, end = self.end, self.end + len(packed)
        assert end <= self.allocated
        self.map[at:end] = packed
        self._words[COMMIT_AT // 8] = commit(self._generation, end)
        self.end = end
        return end - len(body)

    def behind(self, tokens: int) -> None:
        """Note how many tokens are in no frame yet."""
        self._words[BEHIND_AT // 8] = tokens

    def clear(self, keep_bytes: int) -> None:
        """Forget all frames in one store, and give back the blocks above ``keep_bytes``.

        Needs no room: a file that has filled its file system can always be cleared.
        """
        self._generation += 1
        self._words[COMMIT_AT // 8] = commit(self._generation, HEADER_BYTES)
        self.end = HEADER_BYTES
        self.give_back(keep_bytes)

    def read(self, at: int, size: int) -> bytes:
        """Return ``size`` bytes from ``at`` on."""
        return self.map[at : at + size]

    def release(self) -> None:
        """Unmap and close the file; it stays in its directory."""
        self._words.release()
        super().release()


def read_valid(path: Path) -> bytes:
    """Return the committed bytes of the log at ``path``; nothing where there is none that can be read."""
    with suppress(OSError):
        file = open_regular(path)
        if file is not None:
            with open(file, "rb", buffering=0) as opened:  # noqa: PTH123 - a descriptor
                _, valid = committed(opened.read(HEADER_BYTES))
                # The writer may go on: committed bytes change only in another generation, whose frames are
                # refused by those who have this one's header; a file that was replaced stays as it was.
                opened.seek(0)
                return opened.read(min(valid, LIMIT_BYTES_MAX))
    return b""
