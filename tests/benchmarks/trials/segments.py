"""Shared memory of engines: noted while they live, looked for when they are dead."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from rayguard.process.cleanup.shm import held, mapped_segments
from rayguard.process.identity import ProcessId

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

END_S = 30.0  # for what is dead to be cleaned up


class Segments:
    """Which process mapped which segment. Another file of the same name is not that one."""

    def __init__(self) -> None:
        self._of: dict[tuple[Path, int], set[ProcessId]] = {}

    def note(self, pids: Iterable[int]) -> None:
        """Note what these processes map now."""
        for pid in pids:
            process = ProcessId.of(pid)
            if process is None:
                continue
            try:
                for path in mapped_segments(process):
                    self._of.setdefault((path, path.stat().st_ino), set()).add(process)
            except OSError:  # it died meanwhile
                continue

    def left(self, within_s: float = END_S) -> list[str]:
        """Return the segments of which all processes are dead and that are still there, once each."""
        pause, until = threading.Event(), time.monotonic() + within_s
        while (found := self._left()) and time.monotonic() < until:
            pause.wait(0.1)
        for key in found:
            del self._of[key]
        return [str(path) for path, _ in found]

    def _left(self) -> list[tuple[Path, int]]:
        return [
            key for key, mapped in self._of.items() if not any(p.alive() for p in mapped) and _there(*key)
        ]


def _there(path: Path, inode: int) -> bool:
    """Say whether it is still that file, and nobody has it open or mapped."""
    try:
        with path.open("rb") as file:
            return path.stat().st_ino == inode and held(file.fileno()) is not True
    except FileNotFoundError:
        return False
