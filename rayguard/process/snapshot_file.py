"""The newest whole snapshot of something, in two slots of a mapped file: a SIGKILL at any time leaves it.

One process writes. A snapshot goes into the slot that is not current, then the current one changes by a store
of one word: a reader finds the old one or the new one. Beside them the file knows how many calls had ended
when a snapshot was made, how many have ended since, and which run now: what a death has cut off. Both slots
can be read by that number: ranks of a gang go back to the newest that all of them have.
Knows nothing of what the bytes mean, nor of Ray. A power cut is another matter: nothing is synced.
"""

from __future__ import annotations

import os
import struct
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rayguard.private import open_regular
from rayguard.process.mapped_file import MappedFile

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_PAGE = 4_096
_MAGIC = 0x31504E534752  # "RGSNP1"
_NONE = (1 << 64) - 1  # in the place of a number of calls: the slot has no whole snapshot
_KIND, _SLOT_BYTES, _CURRENT, _ENDED = range(4)  # words of the first page; the current slot is 1 or 2
_SIZE_OF = (0, 8, 10)  # the word that holds a slot's bytes; the next one: how many calls had ended then
_RUNNING = 512  # from here on, in bytes: the ids of the calls that run
_ID_BYTES = 56  # Ray's ids of tasks have 48 characters; the last byte: 1 where the call has ended
_NO_CALL = bytes(_ID_BYTES)
_MOST_RUNNING = (_PAGE - _RUNNING) // _ID_BYTES
_ROOM = 1.25  # of what is needed, so that a state that grows a little needs no new file


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a dead process left. ``lost`` calls had ended since; ``running`` are the ids of those cut off.

    ``undone``: the ids of the last of the lost, as far as there were places for them. ``ended``: how many
    calls had ended in all.
    """

    data: bytes
    lost: int
    running: frozenset[str]
    undone: frozenset[str] = frozenset()
    ended: int = field(default=0, compare=False)


class SnapshotFile:
    """The writer's side, for one thread at a time. The first ``write`` replaces what lies at ``path``.

    ``both``: the snapshot before the newest one is kept when the state outgrows the file, too.
    """

    def __init__(self, path: Path, *, both: bool = False) -> None:
        self._path, self._both = path, both
        self._file: MappedFile | None = None
        self._words = memoryview(bytearray(_PAGE)).cast("Q")
        self._noted: list[bytes] = [_NO_CALL] * _MOST_RUNNING
        self._free = deque(range(_MOST_RUNNING))  # the first are those whose calls ended longest ago

    @property
    def calls(self) -> int:
        """Return how many calls have ended."""
        return self._words[_ENDED]

    def write(self, parts: Sequence[bytes | memoryview], ending: int = 0) -> None:
        """Keep ``parts``, one after the other, as the newest snapshot; it has the effect of ``ending`` more.

        Those are still noted as running: ``ended`` is for them when this has returned.

        Raises:
            OSError: There is no room, or no right to write; what was kept stays as it was.
        """
        self._write(parts, self._words[_ENDED] + ending)

    def write_as(self, number: int, parts: Sequence[bytes | memoryview]) -> None:
        """Keep ``parts`` as the newest snapshot, made when ``number`` calls had ended in all.

        Raises:
            OSError: As ``write``.
        """
        self._write(parts, number)
        self._words[_ENDED] = number

    def back_to(self, number: int) -> bool:
        """Make the snapshot of ``number`` the newest, and forget the other one; False where there is none."""
        words = self._words
        for slot in (1, 2):
            if self._file is not None and words[_SIZE_OF[slot] + 1] == number and words[_CURRENT]:
                words[_CURRENT] = slot
                words[_SIZE_OF[3 - slot] + 1] = _NONE
                words[_ENDED] = number
                return True
        return False

    def _write(self, parts: Sequence[bytes | memoryview], number: int) -> None:
        size = sum(memoryview(part).nbytes for part in parts)
        if self._file is not None and size <= self._words[_SLOT_BYTES]:
            _fill(self._file, self._words, parts, size, number)
        elif self._file is not None and self._file.is_gone():
            return  # removed by who knows that its actor's job is over
        else:
            self._write_anew(parts, size, number)
        for place in self._free:  # what ended before this one is in it
            if self._noted[place] is not _NO_CALL:
                self._note(place, _NO_CALL)

    def _write_anew(self, parts: Sequence[bytes | memoryview], size: int, number: int) -> None:
        slot = -(-int(size * _ROOM) // _PAGE) * _PAGE or _PAGE
        file = MappedFile(self._path, size_bytes=_PAGE + 2 * slot, allocate_bytes=_PAGE + 2 * slot)
        words = file.words(0, _PAGE)
        words[_KIND], words[_SLOT_BYTES], words[_ENDED] = _MAGIC, slot, self._words[_ENDED]
        words[_SIZE_OF[1] + 1] = words[_SIZE_OF[2] + 1] = _NONE
        if self._both and self._file is not None:
            current = self._words[_CURRENT]
            begin, kept = _place(self._words, current), self._words[_SIZE_OF[current]]
            with memoryview(self._file.map) as old, old[begin : begin + kept] as newest:
                _fill(file, words, [newest], kept, self._words[_SIZE_OF[current] + 1])
        _fill(file, words, parts, size, number)
        file.map[_RUNNING : _RUNNING + _ID_BYTES * _MOST_RUNNING] = b"".join(self._noted)
        file.publish()
        before, self._file, self._words = self._file, file, words
        if before is not None:
            before.abandon()

    def begun(self, call: str) -> int:
        """Note that a call runs; returns its place, for ``ended``. -1: it has none, since too many run."""
        if not self._free or not call:
            return -1
        place = self._free.popleft()
        self._note(place, call.encode()[: _ID_BYTES - 1].ljust(_ID_BYTES, b"\0"))
        return place

    def ended(self, place: int) -> None:
        """Note that the call at ``place`` has ended; it stays noted where no snapshot has its effect."""
        self._words[_ENDED] += 1
        if place >= 0:
            lost = self._words[_ENDED] > self._words[_SIZE_OF[self._words[_CURRENT]] + 1]
            self._note(place, self._noted[place][:-1] + b"\1" if lost else _NO_CALL)
            self._free.append(place)

    def close(self) -> None:
        """Close the file and leave it where it is: another one is written from now on."""
        if self._file is not None:
            self._file.abandon()
            self._file = None

    def remove(self) -> None:
        """Remove the file: its owner ends for good."""
        if self._file is not None:
            self._file.remove()

    def _note(self, place: int, call: bytes) -> None:
        self._noted[place] = call
        if self._file is not None:
            at = _RUNNING + place * _ID_BYTES
            self._file.map[at : at + _ID_BYTES] = call


def read_snapshot(path: Path, number: int | None = None) -> Snapshot | None:
    """Return the newest that lies at ``path``, or that of ``number`` ended calls; None where there is none.

    Raises:
        ValueError: It is damaged, or of another version.
    """
    handle = open_regular(path)
    if handle is None:
        return None
    with os.fdopen(handle, "rb") as file:
        page = file.read(_PAGE)
        words = struct.unpack(f"<{_PAGE // 8}Q", page) if len(page) == _PAGE else (0,) * (_PAGE // 8)
        slot = words[_CURRENT]
        if words[_KIND] != _MAGIC or slot not in (1, 2):
            raise ValueError(f"{path} holds no snapshot of this version of rayguard")
        if number is not None:
            slot = next((one for one in (1, 2) if words[_SIZE_OF[one] + 1] == number), 0)
            if not slot:
                return None
        size, at_ended = words[_SIZE_OF[slot]], words[_SIZE_OF[slot] + 1]
        if size > words[_SLOT_BYTES]:
            raise ValueError(f"{path} is damaged: {size} bytes in a slot of {words[_SLOT_BYTES]}")
        file.seek(_place(words, slot))
        data = file.read(size)
    if len(data) != size:
        raise ValueError(f"{path} is cut short: {len(data)} of {size} bytes")
    places = range(_RUNNING, _RUNNING + _MOST_RUNNING * _ID_BYTES, _ID_BYTES)
    noted = [page[at : at + _ID_BYTES] for at in places if page[at]]
    running, undone = (
        frozenset(one[:-1].rstrip(b"\0").decode("ascii", "replace") for one in noted if one[-1] == ended)
        for ended in (0, 1)
    )
    return Snapshot(data, max(0, words[_ENDED] - at_ended), running, undone, words[_ENDED])


def _place(words: Sequence[int] | memoryview, slot: int) -> int:
    return _PAGE + (slot - 1) * words[_SLOT_BYTES]


def _fill(
    file: MappedFile, words: memoryview, parts: Sequence[bytes | memoryview], size: int, number: int
) -> None:
    slot = 1 if words[_CURRENT] == 2 else 2  # noqa: PLR2004 - there are two
    words[_SIZE_OF[slot] + 1] = _NONE
    at = _place(words, slot)
    for part in parts:
        flat = memoryview(part).cast("B")
        file.map[at : at + flat.nbytes] = flat
        at += flat.nbytes
    words[_SIZE_OF[slot]], words[_SIZE_OF[slot] + 1] = size, number
    words[_CURRENT] = slot
