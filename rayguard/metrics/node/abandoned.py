"""Numbers that nobody shows any more: of earlier boots and of containers that are gone, and halves of files.

A pid of another world means nothing here, so no process of there can be proved dead. But each agent gives a
sign at the lock of its world (``merged_numbers``): where none came for a week, nobody shows those numbers,
and no counter falls when they go. In a home that stays, they would be more with every boot.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
import time
from typing import TYPE_CHECKING

from rayguard.metrics.node.departed import file_of

if TYPE_CHECKING:
    from collections.abc import Iterator

KEEP_S = 7 * 86_400.0
SIGN_S = 3_600.0
_OURS = re.compile(r"\.?(?:\d{1,10}-\d{1,19}|departed-[0-9a-f]{8})\.(?:json|tmp|lock)")
_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_MAX_BYTES = 1 << 20


class Abandoned:
    """Looks for such files now and then, and removes those that it found before: a clock may have jumped."""

    def __init__(self, mine: str) -> None:
        self._mine = mine  # the name of the sum of our world
        self._before: set[str] = set()

    def look(self, folder: int, lock: int) -> None:
        """Give our sign at ``lock`` and look, once an hour; ``folder`` is that of the numbers."""
        if abs(time.time() - os.fstat(lock).st_mtime) < SIGN_S:
            return
        os.utime(lock)
        now = set(self._found(folder, os.fstat(lock).st_mtime))  # by the clock of whoever keeps the files
        for name in now & self._before:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=folder)
        self._before = now

    def _found(self, folder: int, now: float) -> Iterator[str]:
        old, looked_after = [], {self._mine}
        for name in filter(_OURS.fullmatch, os.listdir(folder)):
            with contextlib.suppress(FileNotFoundError):
                found = os.stat(name, dir_fd=folder, follow_symlinks=False)
                if not stat.S_ISREG(found.st_mode):
                    continue
                if now - found.st_mtime >= KEEP_S:
                    old.append(name)
                elif name.endswith(".lock"):
                    looked_after.add(_sum_of(name))
        for name in old:
            if name.endswith(".tmp") or _whose(folder, name) not in (None, *looked_after):
                yield name


def _sum_of(lock: str) -> str:
    return lock.removeprefix(".").replace(".lock", ".json")


def _whose(folder: int, name: str) -> str | None:
    """Return the name of the sum of that file's world; '' where no version could read it, None if unknown."""
    if name.endswith(".lock"):
        return _sum_of(name)
    if name.startswith("departed-"):
        return name
    try:
        with open(os.open(name, _OPEN, dir_fd=folder), "rb") as file:  # noqa: PTH123 - a descriptor
            page = json.loads(file.read(_MAX_BYTES))
    except ValueError:  # torn, as by a machine that lost its power
        return ""
    except OSError:
        return None
    where = page.get("world") if isinstance(page, dict) else None
    return file_of(where) if isinstance(where, str) else None
