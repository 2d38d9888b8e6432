"""A private file, mapped by the one process that writes it: what was stored survives a SIGKILL at any time.

Nothing is synced, so a power cut is another matter. What the bytes mean is its user's business: the token log
(``rayguard.engine.tokens.file``) and the flight recorder (``rayguard.process.flight.recorder``). Whose file
it is, and when it goes, is ``owned_files``.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
from typing import TYPE_CHECKING

from rayguard.private import closed_after, open_private

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from pathlib import Path

NEW = ".new"  # behind the name of a file that has not taken its place yet
_CREATE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_AGAIN = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC


class MappedFile:
    """A mapped file of ``size_bytes``, locked by its writer. It is ``<path>.new`` until ``publish``.

    Invariant: the blocks below ``allocated`` exist, and nothing is written above it. A store into a hole of a
    full file system is a SIGBUS, which no process survives.
    """

    def __init__(self, path: Path, *, size_bytes: int, allocate_bytes: int) -> None:
        """Make the file and its directory; raises ``OSError`` (ENOSPC, EDQUOT, EACCES) and leaves nothing."""
        self.allocated = 0
        self._path = path
        self._name = path.name + NEW
        with _directory(path) as directory:
            with contextlib.suppress(FileNotFoundError):  # left by an attempt of this process
                os.unlink(self._name, dir_fd=directory)
            self._file = os.open(self._name, _CREATE, 0o600, dir_fd=directory)
            # Another one for the lock: the map has a copy of the first, and in a forked child it may hold it
            # for ever, on the stack of a thread that is not there.
            self._lock = os.open(self._name, _AGAIN, dir_fd=directory)
            try:
                self.map = self._mapped(size_bytes, allocate_bytes)  # stores go to what is ``allocated``
            except BaseException:
                self._close()
                os.unlink(self._name, dir_fd=directory)
                raise

    def _mapped(self, size_bytes: int, allocate_bytes: int) -> mmap.mmap:
        with contextlib.suppress(OSError):  # without locks a sweep proves nothing and leaves the file alone
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(self._file, size_bytes)  # of full length, without blocks: growing it maps nothing anew
        self.allocate(allocate_bytes)
        return mmap.mmap(self._file, size_bytes)

    def allocate(self, end: int) -> None:
        """Have blocks up to ``end``; raises ``OSError`` (ENOSPC, EDQUOT) and leaves all as it was."""
        if end > self.allocated:
            os.posix_fallocate(self._file, self.allocated, end - self.allocated)
            self.allocated = end

    def give_back(self, keep_bytes: int) -> None:
        """Give back the blocks above ``keep_bytes``; needs no room."""
        if self.allocated > keep_bytes:
            self.allocated = keep_bytes  # first: a file that is shorter than we think would be a SIGBUS
            os.ftruncate(self._file, keep_bytes)

    def words(self, start: int, end: int) -> memoryview:
        """Return the 64-bit words from ``start`` to ``end``. An item is stored as a whole.

        Not struct.pack_into: it clears its place before it packs, and another process saw the zeros in one
        look of three. An item of this view is (in CPython) a memcpy of constant size.
        """
        return memoryview(self.map)[start:end].cast("Q")

    def publish(self) -> None:
        """Take the place of what lies at the path: a reader finds that or this, each of them whole."""
        with _directory(self._path) as directory:
            os.rename(self._name, self._path.name, src_dir_fd=directory, dst_dir_fd=directory)
        self._name = self._path.name

    def remove(self) -> None:
        """Remove the file from its directory, unless another one has taken its place."""
        with _directory(self._path) as directory, contextlib.suppress(FileNotFoundError):
            there = os.stat(self._name, dir_fd=directory, follow_symlinks=False)
            if os.path.samestat(there, os.fstat(self._file)):
                os.unlink(self._name, dir_fd=directory)

    def is_gone(self) -> bool:
        """Say whether somebody has removed the file, or put another one in its place."""
        return os.fstat(self._file).st_nlink == 0

    def release(self) -> None:
        """Unmap and close the file; it stays in its directory. Views of it must be released before."""
        self.map.close()
        self._close()

    def abandon(self) -> None:
        """Close the file without unmapping it: the map goes with its last user."""
        self._close()
        del self.map

    def _close(self) -> None:
        os.close(self._lock)
        os.close(self._file)


def _directory(path: Path) -> AbstractContextManager[int]:
    return closed_after(open_private(path.parent))
