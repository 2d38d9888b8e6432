"""The node's journal as others follow it: by a cursor that outlives the agent, so that nothing is lost.

A cursor names a file of the journal by its first line (which has an id that is given once) and how far it
was read. A rotation renames files, and their lines stay. Who comes with a cursor whose file is gone gets
everything there is: a record may come twice, never not at all.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import threading
import zlib
from typing import TYPE_CHECKING

from rayguard.private import read_regular
from rayguard.recovery.incident import Incident
from rayguard.recovery.tail import Tail

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MAX_RECORDS = 1_000
_MAX_BYTES = 4 << 20  # of one answer
_FIRST_BYTES = 64 << 10  # which the first line of a file almost never has: it is read for every question
_NAME = re.compile(r"incidents(?:\.(\d{1,6}))?\.jsonl")
_KEPT = 5_000


def records_after(home: Path, cursor: str) -> tuple[str, list[dict[str, object]]]:
    """Return the records after ``cursor`` ("" for all), oldest first, and the cursor to go on with.

    At most ``MAX_RECORDS``: ask again until none comes. Lines that are torn or not ours are left out.
    """
    files = list(_files(home))
    name, _, read = cursor.partition(":")
    known = [at for at, (path, first) in enumerate(files) if first == name]
    begin, offset = (known[0], int(read)) if known and read.isdecimal() else (0, 0)
    found: list[dict[str, object]] = []
    for path, first in files[begin:]:
        lines, end = _lines(path, offset, MAX_RECORDS - len(found))
        found += [record for line in lines if (record := _record(line)) is not None]
        cursor, offset = f"{first}:{end}", 0
        if len(found) >= MAX_RECORDS:
            break
    return cursor, found


def _files(home: Path) -> Iterator[tuple[Path, str]]:
    """Yield the journal's files, oldest first, each with what names it; those without a whole line not."""
    try:
        names = os.listdir(home)  # noqa: PTH208 - names
    except OSError:
        return
    numbered = [(int(match[1] or 0), name) for name in names if (match := _NAME.fullmatch(name))]
    for _, name in sorted(numbered, reverse=True):
        path = home / name
        lines = _lines(path, 0, 1, _FIRST_BYTES)[0] or _lines(path, 0, 1)[0]
        if lines:
            yield path, f"{zlib.crc32(lines[0]):08x}"


def _lines(path: Path, offset: int, most: int, size: int = _MAX_BYTES) -> tuple[list[bytes], int]:
    """Return up to ``most`` whole lines from ``offset`` on, and where the next one begins."""
    whole: list[bytes] = []
    with contextlib.suppress(OSError):
        whole = read_regular(path, size, offset).split(b"\n")[:-1][:most]
    return whole, offset + sum(len(line) + 1 for line in whole)


def _record(line: bytes) -> dict[str, object] | None:
    try:
        return Incident.from_json(json.loads(line)).to_json()
    except (ValueError, TypeError, AttributeError):
        return None


class KnownIncidents:
    """The newest incidents of the node by pid, each in its last state: was this one written by somebody?"""

    def __init__(self, home: Path) -> None:
        self._tail = Tail(home)
        self._lock = threading.Lock()
        self._by_id: dict[str, Incident] = {}  # oldest first

    def refresh(self) -> None:
        """Take in what was written since the last time; the first time, all there is."""
        with self._lock:
            for incident in self._tail.poll():
                self._by_id.pop(incident.id, None)
                self._by_id[incident.id] = incident
            while len(self._by_id) > _KEPT:
                del self._by_id[next(iter(self._by_id))]

    def of(self, pid: int) -> list[Incident]:
        """Return what is known of processes that had this pid."""
        return [one for one in self._all() if one.pid == pid]

    def signed(self, prefix: str) -> list[Incident]:
        """Return the incidents whose signatures begin so."""
        return [one for one in self._all() if one.signature.startswith(prefix)]

    def close(self) -> None:
        """Close the files."""
        with self._lock:
            self._tail.close()

    def _all(self) -> list[Incident]:
        with self._lock:
            return list(self._by_id.values())
