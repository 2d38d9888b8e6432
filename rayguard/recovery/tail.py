"""Reading a journal while others write and rotate it, from any process, also a read-only one.

``Tail`` is the one reader: the whole journal is its first poll, a live view are its later ones. It takes no
lock and writes nothing. Writing and rotating are ``rayguard.recovery.journal``.
"""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rayguard.private import open_regular
from rayguard.recovery.incident import Incident
from rayguard.recovery.typed_json import read_as
from rayguard.redact import as_written

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path
    from types import TracebackType

    from typing_extensions import Self

    Inode = tuple[int, int]

CURRENT = "incidents.jsonl"
_NAME = re.compile(r"incidents(?:\.(\d{1,6}))?\.jsonl")
_ATTEMPTS = 50  # a rotation takes well under a millisecond: the second look is almost always calm


def rotated(number: int) -> str:
    """Return the name of the ``number``-th newest rotated file."""
    return f"incidents.{number}.jsonl"


def folded(records: Iterable[Incident]) -> list[Incident]:
    """Return each incident once, as its last record has it, oldest first."""
    last = {record.id: record for record in records}
    return sorted(last.values(), key=lambda incident: incident.detected_at)


@dataclass(slots=True)
class _Part:
    """One file of the journal, open. Open, because the inode number of a removed file is used again."""

    file: int
    rest: bytes = b""  # a line whose end was not there yet

    def lines(self) -> Iterator[bytes]:
        """Yield the lines that were completed since the last call."""
        while chunk := os.read(self.file, 1 << 20):
            *whole, self.rest = (self.rest + chunk).split(b"\n")
            yield from whole


class Tail:
    """What was appended to the journal in ``directory`` since the last poll; the first one has the past.

    Files are followed by inode, so a rotation neither hides nor repeats a line. ``errors`` counts lines
    that were skipped because they are torn or not ours.
    """

    def __init__(self, directory: Path) -> None:
        self.errors = 0
        self._directory = directory
        self._parts: dict[Inode, _Part] = {}  # oldest first

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the files."""
        while self._parts:
            os.close(self._parts.popitem()[1].file)

    def poll(self) -> list[Incident]:
        """Return the records of the lines that were completed since the last poll, oldest first."""
        present = self._open_all()
        found = [
            incident
            for part in self._parts.values()
            for line in part.lines()
            if (incident := self._parsed(line)) is not None
        ]
        for inode in [inode for inode in self._parts if inode not in present]:
            part = self._parts.pop(inode)  # rotated away, and read to its end just now
            self.errors += bool(part.rest.strip())
            os.close(part.file)
        return found

    def unfinished(self) -> list[Incident]:
        """Give up waiting for the ends of lines: return those that are whole, count the others as errors."""
        rests = [part.rest for part in self._parts.values()]
        for part in self._parts.values():
            part.rest = b""
        return [incident for rest in rests if (incident := self._parsed(rest)) is not None]

    def _open_all(self) -> set[Inode]:
        """Open what is new. A rotation in between would hide a file, so look until two looks agree."""
        present: list[Inode] = []
        for _ in range(_ATTEMPTS):
            before = self._look()
            for name in reversed(before):  # newest first: a file that moves on meanwhile is met again
                self._open(name)
            present = list(before.values())
            if before == self._look() and all(inode in self._parts for inode in present):
                break
        gone = {inode: part for inode, part in self._parts.items() if inode not in present}
        self._parts = gone | {inode: self._parts[inode] for inode in present if inode in self._parts}
        return set(present)

    def _look(self) -> dict[str, Inode]:
        """Return the journal's files and their inodes, oldest first. Links and pipes are not ours."""
        try:
            names = [path.name for path in self._directory.iterdir()]
        except FileNotFoundError:  # no journal yet
            names = []
        found = [
            (int(match[1] or 0), name, inode)
            for name in names
            if (match := _NAME.fullmatch(name)) and (inode := self._inode(name))
        ]
        return {name: inode for _, name, inode in sorted(found, reverse=True)}

    def _inode(self, name: str) -> Inode | None:
        try:
            state = (self._directory / name).lstat()
        except FileNotFoundError:  # it moved on in this moment: the next look has it
            return None
        return (state.st_dev, state.st_ino) if stat.S_ISREG(state.st_mode) else None

    def _open(self, name: str) -> None:
        file = open_regular(self._directory / name)
        if file is None:
            return
        state = os.fstat(file)
        inode = (state.st_dev, state.st_ino)
        if inode in self._parts:
            os.close(file)
        else:
            self._parts[inode] = _Part(file)

    def _parsed(self, line: bytes) -> Incident | None:
        if not line.strip():
            return None
        try:
            with as_written():
                return read_as(Incident, line)
        except ValueError:
            self.errors += 1
            return None
