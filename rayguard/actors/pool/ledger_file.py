"""Opening, reading and copying the file of a ``ledger``."""

from __future__ import annotations

import fcntl
import os
import stat
from typing import TYPE_CHECKING

from rayguard.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence
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
    chunks, at = [], 0
    while chunk := os.pread(file, 1 << 24, at):
        chunks.append(chunk)
        at += len(chunk)
    return b"".join(chunks)


def copy(old: int, new: int, places: Sequence[int]) -> None:
    """Copy records; those that lie behind one another, together."""
    run_at = run_end = 0
    for place in (*places, 0):
        at, size = place >> 32, place & SIZE
        if at != run_end or run_end - run_at > _CHUNK_BYTES:
            write_all(new, os.pread(old, run_end - run_at, run_at))
            run_at = at
        run_end = at + size


def write_all(file: int, data: bytes) -> None:
    """Append ``data``, however often it takes."""
    while data:
        data = data[os.write(file, data) :]
