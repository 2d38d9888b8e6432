"""Which files of a folder are logs: text, not empty, not code or data; of Ray's folder the latest session.

Bounded in files, entries and depth; links are followed, loops are not. What is left out is counted and told.
"""

from __future__ import annotations

import os
import re
import stat
from collections import Counter
from typing import TYPE_CHECKING

from rayguard.logs.encoding import SNIFFED_BYTES, is_text

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    _Found = tuple[Path, os.stat_result]

MAX_FILES = 2_000
MAX_ENTRIES = 100_000
MAX_DEPTH = 16

_NOT_LOGS = re.compile(
    r"\.(?:pyi?|pyx|ipynb|[jt]s|c|h|cc|[ch]pp|cuh?|go|rs|java|sh|html|css|md|rst|toml|ya?ml|jsonl?|[ct]sv|xml"
    r"|lock|cfg|ini|svg)"
)
_SESSION_LINK = "session_latest"
_RAY_STATE = "debug_state"  # a dump of the raylet's tables; it names errors that never happened


class Folder:
    """Reads one folder; ``seen`` holds the files (device, inode) that need not be read again."""

    def __init__(self, seen: set[tuple[int, int]] | None = None) -> None:
        self._seen = set() if seen is None else seen
        self._left_out: Counter[str] = Counter()
        self._entries = 0
        self._session = ""

    def read(self, path: Path) -> list[_Found]:
        """Return the logs in ``path``; where there are too many, the ones that were written last."""
        path = self._logs_of_session(path)
        found: list[_Found] = []
        self._walk(path, 0, found)
        if len(found) > MAX_FILES:
            self._left_out["older than the newest 2,000"] += len(found) - MAX_FILES
            found = sorted(found, key=lambda one: one[1].st_mtime)[-MAX_FILES:]
        return found

    def notes(self, name: str) -> list[str]:
        """Return what was left out, in a sentence for people."""
        told = [f"{name}: reading the latest session only, {self._session}"] if self._session else []
        if self._left_out:
            reasons = ", ".join(f"{count:,} {reason}" for reason, count in self._left_out.most_common())
            told.append(f"{name}: left out {reasons}")
        return told

    def _logs_of_session(self, path: Path) -> Path:
        """Return the folder with the logs where ``path`` is Ray's own: /tmp/ray, or a session in it."""
        latest = path / _SESSION_LINK
        if latest.is_dir():
            path = latest
            self._session = latest.resolve().name
        logs = path / "logs"
        return logs if (path / "sockets").is_dir() and logs.is_dir() else path

    def _walk(self, folder: Path, depth: int, found: list[_Found]) -> None:
        for path, status in self._new(folder):
            if stat.S_ISREG(status.st_mode):
                reason = _no_log(path, status)
                if reason:
                    self._left_out[reason] += 1
                else:
                    found.append((path, status))
            elif stat.S_ISDIR(status.st_mode) and depth < MAX_DEPTH:
                self._walk(path, depth + 1, found)

    def _new(self, folder: Path) -> Iterator[_Found]:
        """Yield what stands in ``folder`` and was not seen under another name."""
        try:
            names = sorted(name for name in os.listdir(folder) if not name.startswith("."))  # noqa: PTH208
        except OSError:
            self._left_out["that cannot be read"] += 1
            return
        allowed = MAX_ENTRIES - self._entries
        self._entries += len(names)
        if len(names) > allowed:
            self._left_out[f"after the first {MAX_ENTRIES:,} entries"] += len(names) - max(allowed, 0)
        for name in names[: max(allowed, 0)]:
            try:
                status = (folder / name).stat()
            except OSError:  # a link to nothing, a loop of links
                continue
            here = (status.st_dev, status.st_ino)
            if here not in self._seen:
                self._seen.add(here)
                yield folder / name, status


def _no_log(path: Path, status: os.stat_result) -> str:
    """Return why ``path`` is no log, or nothing."""
    if status.st_size == 0:
        return "empty"
    if _NOT_LOGS.fullmatch(path.suffix.lower()) or path.name.startswith(_RAY_STATE):
        return "code or data"
    try:
        with path.open("rb") as file:
            head = file.read(SNIFFED_BYTES)
    except OSError:
        return "that cannot be read"
    return "" if is_text(head) else "binary"
