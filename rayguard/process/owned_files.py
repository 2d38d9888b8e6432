"""Files that a process keeps under its own name, and the removal of those whose writers are dead.

The name says who writes: ``<kind>-<boot>-<pid>-<started>.<ending>``. What lies in them is
``mapped_file``'s users' business.
"""

from __future__ import annotations

import fcntl
import os
import re
import stat
import time
from functools import lru_cache
from pathlib import Path

from rayguard.private import closed_after, open_private
from rayguard.process.identity import ProcessId, owner_mark, owner_of
from rayguard.process.mapped_file import NEW

_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_FOUND_DEAD = 0o400


@lru_cache(maxsize=1)
def boot() -> str:
    """Return which run of which kernel this is: pid and start time mean nothing in another one."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").replace("-", "")[:12]
    except (OSError, ValueError):
        return "unknown"  # matches no name that ``sweep`` looks at


def path_of(directory: Path, kind: str, ending: str, writer: ProcessId | None = None) -> Path:
    """Return where ``writer`` (the calling process by default) keeps its file of this kind."""
    return directory / f"{kind}-{boot()}-{owner_mark(writer or ProcessId.me())}.{ending}"


def writer_of(name: str, kind: str, ending: str) -> ProcessId | None:
    """Return who writes the file of this name; None for a foreign name and for another boot."""
    match = _pattern(kind, ending).fullmatch(name)
    return owner_of(match[2]) if match and match[1] == boot() else None


@lru_cache(maxsize=16)
def _pattern(kind: str, ending: str) -> re.Pattern[str]:
    return re.compile(
        rf"{re.escape(kind)}-([0-9a-f]{{12}})-(\d{{1,10}}-\d{{1,19}})\.{re.escape(ending)}"
        rf"(?:{re.escape(NEW)})?"
    )


def sweep(
    directory: Path, kind: str, ending: str, *, older_than_s: float, only_look: bool = False
) -> list[Path]:
    """Remove the files of this kind whose writers are provably dead, and return which.

    A writer is dead when it ran under this kernel, its pid is gone or belongs to a process that started at
    another time, and nobody holds the lock of its file (a writer in another container has a pid that says
    nothing here). The first sweep that finds it so marks the file (read-only, modified now); one that comes
    ``older_than_s`` later removes it. The age of the file itself says nothing: a store into a map in memory
    does not change it, and who reads what the dead left needs the time after the death. With ``only_look`` it
    marks and removes nothing, and returns what another sweep would remove now.
    """
    if not directory.is_dir():
        return []
    with closed_after(open_private(directory)) as folder:
        names = sorted(os.listdir(folder))  # noqa: PTH208 - of the descriptor that was checked
        writers = ((name, writer_of(name, kind, ending)) for name in names)
        return [
            directory / name
            for name, who in writers
            if _swept(folder, name, who, older_than_s, only_look=only_look)
        ]


def _swept(folder: int, name: str, writer: ProcessId | None, older_than_s: float, *, only_look: bool) -> bool:
    if writer is None or writer.alive():
        return False
    try:
        file = os.open(name, _OPEN, dir_fd=folder)
    except OSError:  # removed by another sweep, or a symlink
        return False
    try:
        if not abandoned(file, older_than_s, mark=not only_look):
            return False
        if not only_look:
            os.unlink(name, dir_fd=folder)
    except OSError:
        return False
    finally:
        os.close(file)
    return True


def abandoned(file: int, older_than_s: float, *, mark: bool) -> bool:
    """Say whether ``file`` was found without a writer long enough ago; ``mark`` one that is found so now."""
    found = os.fstat(file)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # given back when the file is closed
    except OSError:
        return False
    if stat.S_IMODE(found.st_mode) != _FOUND_DEAD:
        if mark:
            os.utime(file)
            os.fchmod(file, _FOUND_DEAD)
        return False
    return time.time() - found.st_mtime >= older_than_s
