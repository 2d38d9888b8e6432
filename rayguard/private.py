"""Directories that only this user writes, and files opened without falling into a trap set by another.

Both matter below a ``/tmp`` that everybody shares. Standard library only: every guarded process writes
through here. Which directory it is, is ``rayguard.config``.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

OPEN_OURS = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_CREAT | os.O_RDWR
_LOCK_POLL_S = 0.005


def open_private(directory: Path) -> int:
    """Open ``directory``, made with mode 0700 where it is missing; return a descriptor to use as ``dir_fd``.

    Raises ``PermissionError`` for a directory that is not ours, that everybody may write, or that is reached
    through a symlink of another user: in a shared ``/tmp`` such a link would choose the file that we write.
    Going from one descriptor to the next leaves no moment between the check and the use.
    """
    here = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for name in directory.absolute().parts[1:]:
            beneath = _step_into(here, name, directory)
            os.close(here)
            here = beneath
        _require_ours(os.fstat(here), directory)
        return os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=here)
    finally:
        os.close(here)


@contextlib.contextmanager
def closed_after(file: int) -> Iterator[int]:
    """Give an open descriptor to a block, and close it at its end."""
    try:
        yield file
    finally:
        os.close(file)


@contextlib.contextmanager
def locked(directory: int, name: str, within_s: float) -> Iterator[bool]:
    """Hold the lock ``name`` of a directory; False when its holder (frozen by a signal, say) keeps it."""
    with closed_after(os.open(name, OPEN_OURS, 0o600, dir_fd=directory)) as lock:
        got = _lock_in_time(lock, within_s)
        try:
            yield got
        finally:
            if got:  # closing is not enough: a child forked meanwhile has the same lock open
                fcntl.flock(lock, fcntl.LOCK_UN)


def _lock_in_time(lock: int, within_s: float) -> bool:
    deadline = time.monotonic() + within_s
    pause = threading.Event()
    while time.monotonic() < deadline:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        pause.wait(_LOCK_POLL_S)
    return False


def _step_into(here: int, name: str, directory: Path) -> int:
    flags = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
    try:
        found = os.stat(name, dir_fd=here, follow_symlinks=False)
    except FileNotFoundError:
        with contextlib.suppress(FileExistsError):  # another process was faster: O_NOFOLLOW refuses a link
            os.mkdir(name, 0o700, dir_fd=here)
        return os.open(name, flags | os.O_NOFOLLOW, dir_fd=here)
    if not stat.S_ISLNK(found.st_mode):
        return os.open(name, flags | os.O_NOFOLLOW, dir_fd=here)
    if found.st_uid not in (0, os.getuid()):
        raise PermissionError(f"{directory}: {name!r} on the way is a symlink of user {found.st_uid}")
    return os.open(name, flags, dir_fd=here)


def _require_ours(found: os.stat_result, directory: Path) -> None:
    if found.st_uid != os.getuid():
        raise PermissionError(f"{directory} belongs to user {found.st_uid}, not to {os.getuid()}")
    if found.st_mode & stat.S_IWOTH:
        raise PermissionError(f"everybody may write to {directory}: `chmod o-w` it, or set RAYGUARD_HOME")


def open_regular(path: Path) -> int | None:
    """Open the regular file ``path`` for reading; None when it is gone, a link, or something that blocks."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ELOOP, errno.ENXIO):
            return None
        raise
    if stat.S_ISREG(os.fstat(file).st_mode):
        return file
    os.close(file)
    return None


def read_regular(path: Path, most: int, offset: int = 0) -> bytes:
    """Return up to ``most`` bytes of a file from ``offset`` on; none where ``open_regular`` opens none."""
    file = open_regular(path)
    if file is None:
        return b""
    try:
        return os.pread(file, most, offset)
    finally:
        os.close(file)


def replace_file(directory: Path, name: str, content: bytes) -> None:
    """Make ``content`` the file ``name`` of a private directory, in one step and readable by us alone.

    Not forced to the disk: it survives the death of its writer, and not that of the machine.
    """
    there = open_private(directory)
    beside = f".{name.removesuffix('.json')}.tmp"
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        file = os.open(beside, flags, 0o600, dir_fd=there)
        with open(file, "wb") as stream:  # noqa: PTH123 - a descriptor, not a path
            stream.write(content)
        os.replace(beside, name, src_dir_fd=there, dst_dir_fd=there)
    finally:
        os.close(there)
