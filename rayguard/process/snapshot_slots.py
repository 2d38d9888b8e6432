"""The slots of a snapshot file (``rayguard.process.snapshot_file``), as other processes see them.

They learn of which calls there is a snapshot, hold two against being written over, and read one part by part
while its writer goes on: each time that a slot is filled it gets another stamp, so that a reader knows
whether what it has read is whole. Nobody waits for anybody, and a hold that nobody ends costs a slot.
"""

from __future__ import annotations

import contextlib
import os
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rayguard.private import open_regular

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

PAGE = 4_096
MAGIC = 0x32504E534752  # "RGSNP2"
NONE = (1 << 64) - 1  # in the place of a number of calls: the slot has no whole snapshot
KIND, SLOT_BYTES, CURRENT, ENDED = range(4)  # words of the first page; slots count from 1
HELD = (4, 5)  # the words with the numbers of calls whose slots are held
MOST_SLOTS = 4  # the newest, the one that is written, and those that are held
SIZE_OF = (
    0,
    8,
    10,
    12,
    14,
)  # the word that holds a slot's bytes; the next one: how many calls had ended then
STAMP_OF = (0, 16, 17, 18, 19)
_WRITE = os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class SlotPlace:
    """A whole snapshot in a slot, of ``size`` bytes, until it gets another stamp."""

    slot: int
    stamp: int
    size: int


def slot_begin(words: Sequence[int] | memoryview, slot: int) -> int:
    """Return where a slot begins in the file."""
    return PAGE + (slot - 1) * int(words[SLOT_BYTES])


def first_page(page: bytes, path: Path) -> tuple[int, ...]:
    """Return the words of a file's first page.

    Raises:
        ValueError: It is none of this version.
    """
    words = struct.unpack(f"<{PAGE // 8}Q", page) if len(page) == PAGE else (0,) * (PAGE // 8)
    if words[KIND] != MAGIC or not 1 <= words[CURRENT] <= MOST_SLOTS:
        raise ValueError(f"{path} holds no snapshot of this version of rayguard")
    return words


def numbers_at(path: Path) -> frozenset[int]:
    """Return of how many calls there are whole snapshots at ``path``.

    Raises:
        ValueError: As ``first_page``.
    """
    with _opened(path) as file:
        words = () if file is None else first_page(os.pread(file, PAGE, 0), path)
    return frozenset(words[at + 1] for at in SIZE_OF[1:] if words and words[at + 1] != NONE)


def place_of(path: Path, number: int) -> SlotPlace | None:
    """Return where the snapshot of ``number`` calls lies; None where there is none.

    Raises:
        ValueError: As ``first_page``.
    """
    with _opened(path) as file:
        if file is None:
            return None
        words = first_page(os.pread(file, PAGE, 0), path)
    for slot in range(1, MOST_SLOTS + 1):
        if words[SIZE_OF[slot] + 1] == number and words[STAMP_OF[slot]]:
            return SlotPlace(slot, words[STAMP_OF[slot]], words[SIZE_OF[slot]])
    return None


def hold(path: Path, numbers: tuple[int | None, int | None]) -> None:
    """Have the snapshots of these numbers of calls not written over, also one that is still to come.

    Those that were held before are no longer. Where there is no file, nothing is done.
    """
    raw = struct.pack("<2Q", *(NONE if number is None else number for number in numbers))
    with contextlib.suppress(FileNotFoundError):
        file = os.open(path, _WRITE)
        try:
            os.pwrite(file, raw, 8 * HELD[0])
        finally:
            os.close(file)


def read_part(path: Path, place: SlotPlace, begin: int, most: int) -> bytes | None:
    """Return at most ``most`` bytes of a snapshot, from ``begin`` on; None where it is not there any more.

    Raises:
        ValueError: As ``first_page``.
    """
    with _opened(path) as file:
        if file is None:
            return None
        at = slot_begin(first_page(os.pread(file, PAGE, 0), path), place.slot) + begin
        data = os.pread(file, min(most, place.size - begin), at)
        (stamp,) = struct.unpack("<Q", os.pread(file, 8, 8 * STAMP_OF[place.slot]))
    whole = stamp == place.stamp and len(data) == min(most, place.size - begin)
    return data if whole else None


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int | None]:
    file = open_regular(path)
    try:
        yield file
    finally:
        if file is not None:
            os.close(file)
