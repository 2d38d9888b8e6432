"""Opening, reading and copying the file of a ``ledger``."""

from __future__ import annotations

import fcntl
import os
import stat
from typing import TYPE_CHECKING

from rayguard.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

SIZE = (1 << 32) - 1  # a place is offset << 32 | size
_CHUNK_BYTES = 1 << 20
_OPEN = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


def locked(folder: int, name: str, path: Path) -> int:
    """Open ``name``, ours alone: the lock goes with the process, and is not inherited by a fork.

    Raises:
        ConfigError: Another process has it.
    """
    file = os.open(name, _OPEN, 0o600, dir_fd=folder)
    try:
        found = os.fstat(file)
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        still = os.path.samestat(found, os.stat(name, dir_fd=folder, follow_symlinks=False))
    except BlockingIOError:
        still = False
    except OSError:
        os.close(file)
        raise
    if still and stat.S_ISREG(found.st_mode):
        return file
    os.close(file)
    raise ConfigError(f"the ledger {path} is used by a pool of another process, or is no file")


def content(file: int) -> bytes:
    """Return all that is in the file."""
    with open(file, "rb", closefd=False) as stream:
        stream.seek(0)
        return stream.read()


def copy(old: int, new: int, places: Iterable[int]) -> None:
    """Append records of one file to another; those that lie behind one another, together."""
    start = end = 0
    for place in (*places, 0):
        at, size = place >> 32, place & SIZE
        if at != end or end - start > _CHUNK_BYTES:
            write_all(new, os.pread(old, end - start, start))
            start = at
        end = at + size


def write_all(file: int, data: bytes) -> None:
    """Append ``data``, however often it takes."""
    while data:
        data = data[os.write(file, data) :]
