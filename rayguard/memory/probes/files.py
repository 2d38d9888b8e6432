"""How full file systems are: shared memory, the disk under Ray's session, its logs and spilled objects.

A local file system answers in 3 us. One behind a network can hang for ever in the kernel, where nothing ends
the wait: it is asked in a thread of its own, with a deadline, and not again while the last answer is out.
"""

from __future__ import annotations

import os
import re
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

DEADLINE_S = 0.5
_MOUNTS = Path("/proc/self/mounts")
_ESCAPED = re.compile(r"\\([0-7]{3})")
_LOCAL = frozenset(
    (
        *("bcachefs", "btrfs", "exfat", "ext2", "ext3", "ext4", "f2fs", "vfat", "xfs", "zfs"),
        *("devtmpfs", "overlay", "ramfs", "rootfs", "squashfs", "tmpfs"),
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSystem:
    """Bytes of the file system that holds ``path``. ``used`` counts what only root may use as used."""

    path: str
    used: int
    total: int
    device: int = 0  # the same for two paths on one file system


class FilesProbe:
    """Asks the file systems under ``paths``; a path that does not exist (yet) is left out."""

    def __init__(
        self,
        paths: Iterable[str | Path],
        *,
        deadline_s: float = DEADLINE_S,
        mounts: Path = _MOUNTS,
        ask: Callable[[str], FileSystem] | None = None,
    ) -> None:
        self.paths = tuple(dict.fromkeys(map(str, paths)))
        self._deadline_s = deadline_s
        self._ask = ask or _ask
        types = _mounted(mounts)
        self._remote = {path: _is_remote(path, types) for path in self.paths}
        self._asking: dict[str, _Question] = {}

    def read(self) -> tuple[FileSystem, ...]:
        """Return one answer for each file system in the order of the paths; what is late is left out."""
        found: dict[int, FileSystem] = {}
        for path in self.paths:
            answer = self._one(path)
            if answer is not None:
                found.setdefault(answer.device, answer)
        return tuple(found.values())

    def hanging(self) -> tuple[str, ...]:
        """Return the paths that have not answered yet."""
        return tuple(path for path, question in self._asking.items() if question.answer is None)

    def _one(self, path: str) -> FileSystem | None:
        if not self._remote[path]:
            return _answer(self._ask, path)
        question = self._asking.get(path)
        if question is None:
            question = self._asking[path] = _Question(self._ask, path)
            question.done.wait(self._deadline_s)
        if not question.done.is_set():
            return None
        del self._asking[path]
        return question.answer


class _Question:
    """One path asked about in a thread; the thread is lost when the kernel does not come back."""

    def __init__(self, ask: Callable[[str], FileSystem], path: str) -> None:
        self.done = threading.Event()
        self.answer: FileSystem | None = None
        threading.Thread(target=self._run, args=(ask, path), name="rayguard-files", daemon=True).start()

    def _run(self, ask: Callable[[str], FileSystem], path: str) -> None:
        self.answer = _answer(ask, path)
        self.done.set()


def _answer(ask: Callable[[str], FileSystem], path: str) -> FileSystem | None:
    try:
        return ask(path)
    except OSError:
        return None


def _ask(path: str) -> FileSystem:
    fs = os.statvfs(path)
    total = fs.f_blocks * fs.f_frsize
    # What is reserved for root is of no use to anybody else.
    return FileSystem(
        path=path,
        used=total - fs.f_bavail * fs.f_frsize,
        total=total,
        device=os.stat(path).st_dev,  # noqa: PTH116
    )


def _mounted(mounts: Path) -> dict[str, str]:
    """Return the type of the file system at each mount point; empty where that cannot be read."""
    try:
        lines = mounts.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return {}
    fields = (line.split() for line in lines)
    return {_plain(found[1]): found[2] for found in fields if len(found) > 2}  # noqa: PLR2004


def _plain(text: str) -> str:
    return _ESCAPED.sub(lambda match: chr(int(match[1], 8)), text)


def _is_remote(path: str, types: dict[str, str]) -> bool:
    """Say whether ``path`` may hang: by its mount point, any type but those known to be local."""
    for place in (path, *map(str, Path(path).parents)):
        if place in types:
            return types[place] not in _LOCAL
    return bool(types)
