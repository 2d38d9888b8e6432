"""The newest whole snapshot of something, in two slots of a mapped file: a SIGKILL at any time leaves it.

One process writes. A snapshot goes into a slot that is not current, then the current one changes by a store
of one word: a reader finds the old one or the new one. Beside them the file knows how many calls had ended
when a snapshot was made, how many have ended since, and which run now: what a death has cut off. Each slot
can be read by that number: ranks of a gang go back to the newest that all of them have. Other processes may
hold slots (``rayguard.process.snapshot_slots``): then there are up to four.
Knows nothing of what the bytes mean, nor of Ray. A power cut is another matter: nothing is synced.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rayguard.private import open_regular
from rayguard.process.mapped_file import MappedFile
from rayguard.process.snapshot_slots import (
    CURRENT,
    ENDED,
    HELD,
    KIND,
    MAGIC,
    MOST_SLOTS,
    NONE,
    PAGE,
    SIZE_OF,
    SLOT_BYTES,
    STAMP_OF,
    first_page,
    slot_begin,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_RUNNING = 512  # from here on, in bytes: the ids of the calls that run
_ID_BYTES = 56  # Ray's ids of tasks have 48 characters; the last byte: 1 where the call has ended
_NO_CALL = bytes(_ID_BYTES)
_MOST_RUNNING = (PAGE - _RUNNING) // _ID_BYTES
_AT_FIRST = 2  # slots that have room
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

    ``both``: the snapshot before the newest one is kept when the state outgrows the file, too. ``slots``: how
    many there may be, 2 or more; the third takes no room until two are held.
    """

    def __init__(self, path: Path, *, both: bool = False, slots: int = 2) -> None:
        self._path, self._both, self._slots = path, both, slots
        self._file: MappedFile | None = None
        self._words = memoryview(bytearray(PAGE)).cast("Q")
        self._noted: list[bytes] = [_NO_CALL] * _MOST_RUNNING
        self._free = deque(range(_MOST_RUNNING))  # the first are those whose calls ended longest ago

    @property
    def calls(self) -> int:
        """Return how many calls have ended."""
        return self._words[ENDED]

    def write(self, parts: Sequence[bytes | memoryview], ending: int = 0) -> None:
        """Keep ``parts``, one after the other, as the newest snapshot; it has the effect of ``ending`` more.

        Those are still noted as running: ``ended`` is for them when this has returned.

        Raises:
            OSError: There is no room, or no right to write; what was kept stays as it was.
        """
        self._write(parts, self._words[ENDED] + ending)

    def write_as(self, number: int, parts: Sequence[bytes | memoryview]) -> None:
        """Keep ``parts`` as the newest snapshot, made when ``number`` calls had ended in all.

        Those of as many calls and more are forgotten: they were undone.

        Raises:
            OSError: As ``write``.
        """
        self._write(parts, number)
        self._forget(number - 1)
        self._words[ENDED] = number

    def back_to(self, number: int) -> bool:
        """Make the snapshot of ``number`` the newest, and forget later ones; False where there is none."""
        numbers = [self._words[at + 1] for at in SIZE_OF[1:]]
        if self._file is None or number not in numbers:
            return False
        self._words[CURRENT] = 1 + numbers.index(number)
        self._forget(number)
        self._words[ENDED] = number
        return True

    def _forget(self, number: int) -> None:
        """Forget the snapshots of more than ``number`` calls, but for the newest one."""
        for slot, at in enumerate(SIZE_OF[1:], 1):
            if slot != self._words[CURRENT] and self._words[at + 1] > number:
                self._words[at + 1] = NONE

    def _write(self, parts: Sequence[bytes | memoryview], number: int) -> None:
        size = sum(memoryview(part).nbytes for part in parts)
        if self._file is not None and size <= self._words[SLOT_BYTES]:
            _fill(self._file, self._words, parts, size, number)
        elif self._file is not None and self._file.is_gone():
            return  # removed by who knows that its actor's job is over
        else:
            self._write_anew(parts, size, number)
        for place in self._free:  # what ended before this one is in it
            if self._noted[place] is not _NO_CALL:
                self._note(place, _NO_CALL)

    def _write_anew(self, parts: Sequence[bytes | memoryview], size: int, number: int) -> None:
        slot = -(-int(size * _ROOM) // PAGE) * PAGE or PAGE
        file = MappedFile(
            self._path, size_bytes=PAGE + self._slots * slot, allocate_bytes=PAGE + _AT_FIRST * slot
        )
        words = file.words(0, PAGE)
        words[KIND], words[SLOT_BYTES], words[ENDED] = MAGIC, slot, self._words[ENDED]
        for at in (*HELD, *(one + 1 for one in SIZE_OF[1:])):
            words[at] = NONE
        if self._both and self._file is not None:
            self._take_along(file, words)
        _fill(file, words, parts, size, number)
        file.map[_RUNNING : _RUNNING + _ID_BYTES * _MOST_RUNNING] = b"".join(self._noted)
        file.publish()
        before, self._file, self._words = self._file, file, words
        if before is not None:
            before.abandon()

    def _take_along(self, file: MappedFile, words: memoryview) -> None:
        """Copy the newest snapshot into a new file, and before it those that are held."""
        assert self._file is not None
        held = {self._words[at] for at in HELD} - {NONE}
        for at in HELD:
            words[at] = self._words[at]
        slots = [slot for slot in range(1, MOST_SLOTS + 1) if self._words[SIZE_OF[slot] + 1] in held]
        current = self._words[CURRENT]
        with memoryview(self._file.map) as old:
            for slot in (*(one for one in slots if one != current), current):
                begin, kept = slot_begin(self._words, slot), self._words[SIZE_OF[slot]]
                with old[begin : begin + kept] as one:
                    _fill(file, words, [one], kept, self._words[SIZE_OF[slot] + 1])

    def begun(self, call: str) -> int:
        """Note that a call runs; returns its place, for ``ended``. -1: it has none, since too many run."""
        if not self._free or not call:
            return -1
        place = self._free.popleft()
        self._note(place, call.encode()[: _ID_BYTES - 1].ljust(_ID_BYTES, b"\0"))
        return place

    def ended(self, place: int) -> None:
        """Note that the call at ``place`` has ended; it stays noted where no snapshot has its effect."""
        self._words[ENDED] += 1
        if place >= 0:
            lost = self._words[ENDED] > self._words[SIZE_OF[self._words[CURRENT]] + 1]
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
        page = file.read(PAGE)
        words = first_page(page, path)
        slot = words[CURRENT]
        if number is not None:
            slot = next((one for one in range(1, MOST_SLOTS + 1) if words[SIZE_OF[one] + 1] == number), 0)
            if not slot:
                return None
        size, at_ended = words[SIZE_OF[slot]], words[SIZE_OF[slot] + 1]
        if size > words[SLOT_BYTES]:
            raise ValueError(f"{path} is damaged: {size} bytes in a slot of {words[SLOT_BYTES]}")
        file.seek(slot_begin(words, slot))
        data = file.read(size)
    if len(data) != size:
        raise ValueError(f"{path} is cut short: {len(data)} of {size} bytes")
    places = range(_RUNNING, _RUNNING + _MOST_RUNNING * _ID_BYTES, _ID_BYTES)
    noted = [page[at : at + _ID_BYTES] for at in places if page[at]]
    running, undone = (
        frozenset(one[:-1].rstrip(b"\0").decode("ascii", "replace") for one in noted if one[-1] == ended)
        for ended in (0, 1)
    )
    return Snapshot(data, max(0, words[ENDED] - at_ended), running, undone, words[ENDED])


def _fill(
    file: MappedFile, words: memoryview, parts: Sequence[bytes | memoryview], size: int, number: int
) -> None:
    slot = _slot_to_fill(file, words)
    words[SIZE_OF[slot] + 1] = NONE
    words[STAMP_OF[slot]] = 0
    at = slot_begin(words, slot)
    for part in parts:
        flat = memoryview(part).cast("B")
        file.map[at : at + flat.nbytes] = flat
        at += flat.nbytes
    words[SIZE_OF[slot]], words[SIZE_OF[slot] + 1] = size, number
    words[STAMP_OF[slot]] = time.monotonic_ns()
    words[CURRENT] = slot


def _slot_to_fill(file: MappedFile, words: memoryview) -> int:
    """Return the slot with the oldest snapshot: of those that are not held, if there are any.

    One more is made where all are. Where there is no room for it, a held one goes: its reader will see that.
    """
    count = (len(file.map) - PAGE) // words[SLOT_BYTES]
    if count == _AT_FIRST:
        return 1 if words[CURRENT] == _AT_FIRST else _AT_FIRST
    others = [one for one in range(1, count + 1) if one != words[CURRENT]]
    there = [one for one in others if slot_begin(words, one + 1) <= file.allocated]
    age = {one: -1 if words[SIZE_OF[one] + 1] == NONE else words[SIZE_OF[one] + 1] for one in there}
    held = {words[at] for at in HELD}
    free = [one for one in there if age[one] not in held]
    more = next((one for one in others if one not in there), 0)
    if not free and more:
        with contextlib.suppress(OSError):
            file.allocate(slot_begin(words, more + 1))
            return more
    return min(free or there, key=age.__getitem__)
