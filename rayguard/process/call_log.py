"""What ended since a snapshot was taken, in a file beside it: numbered records. A SIGKILL leaves them.

One process writes. What a record means is its user's business (``rayguard.actors.life.calls_since``), and so
is which numbers still count. A power cut is another matter: nothing is synced.
"""

from __future__ import annotations

import os
import struct
from typing import TYPE_CHECKING

from rayguard.private import closed_after, open_private, open_regular

if TYPE_CHECKING:
    from pathlib import Path

_HEAD = struct.Struct("<QQ")  # a record's number, its bytes
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC


class CallLog:
    """The writer's side, for one thread at a time. ``size``: the bytes that it holds."""

    def __init__(self, path: Path) -> None:
        self._path, self._file, self.size = path, -1, 0

    def add(self, number: int, record: bytes) -> None:
        """Add a record.

        Raises:
            OSError: There is no room, or no right to write; what was there stays.
        """
        if self._file < 0:
            with closed_after(open_private(self._path.parent)) as directory:
                self._file = os.open(self._path.name, _FLAGS, 0o600, dir_fd=directory)
        data = _HEAD.pack(number, len(record)) + record
        if os.write(self._file, data) != len(data):
            os.ftruncate(self._file, self.size)
            raise OSError(f"no room for {len(data)} bytes in {self._path}")
        self.size += len(data)

    def clear(self) -> None:
        """Drop all records, also those of an earlier process."""
        if self._file >= 0:
            os.ftruncate(self._file, 0)
            self.size = 0
        else:
            self._path.unlink(missing_ok=True)


def read_calls(path: Path, after: int, until: int) -> list[bytes]:
    """Return the records with numbers above ``after`` and up to ``until``, in their order; no file: none."""
    handle = open_regular(path)
    if handle is None:
        return []
    with os.fdopen(handle, "rb") as file:
        data = file.read()
    found, at = [], 0
    while at + _HEAD.size <= len(data):
        number, size = _HEAD.unpack_from(data, at)
        at += _HEAD.size + size
        if at <= len(data) and after < number <= until:
            found.append(data[at - size : at])
    return found
