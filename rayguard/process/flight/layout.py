"""A flight recording byte by byte: packed by its writer, taken apart by a reader that trusts nothing.

The file is a header, a table of live words, and rings of slots. A slot is whole or it does not count: it has
its number and a crc32 of all of itself, and its number says where it lies. Not the frames of a token log:
those are committed one after the other by one writer under a lock. Here any thread writes at any time, and a
garbage collection may come in the middle of a write and write too; each has a slot of its own.

Values only. Who writes is ``recorder``, what a reader makes of it ``recording``.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

KIND, ENDING = "flight", "ring"  # of the file's name (``owned_files``)

_MAGIC, _VERSION = b"rgflight", 2
# Native byte order: a recording is read on the machine that wrote it. The two clocks, read at one moment, in
# nanoseconds: wall and monotonic; every other time in the file is monotonic.
_HEADER = struct.Struct("=8sI32sQQ")
_CRC = struct.Struct("=I")
_SLOT = struct.Struct("=HHQQ")  # kind, length of the body, number, time
_SLOT_HEAD = _CRC.size + _SLOT.size


class LiveWord(IntEnum):
    """Where the words of the whole process stand in the live table. Each is stored in one piece."""

    STEP = 0  # the last step that was told, plus one; 0 when none ever was
    STEP_AT = 1
    GC_SINCE = 2  # monotonic ns since which it collects garbage; 0 while it does not
    GROUP_KILLS = 3  # of the kernel's out-of-memory killer, as its cgroup counted them, plus one; 0 unknown
    NODE_KILLS = 4  # the same of the whole machine
    ENDING = 5  # monotonic ns at which the process said how it ends; 0 if it never did
    CALLS_LOST = 6  # calls of methods for which the table had no room


# Five words for each method follow the sixteen of the process. LONGEST: of its calls, in ns.
BEGUN, ENDED, BEGUN_AT, ENDED_AT, LONGEST = range(5)
UNTOLD = (1 << 64) - 1  # for LONGEST: two calls ran at once, and which of them ended is not known
_WORDS_AT, _GLOBAL_WORDS, _METHOD_WORDS = 128, 16, 5
METHODS = 60
WORDS = _GLOBAL_WORDS + METHODS * _METHOD_WORDS


@dataclass(frozen=True, slots=True)
class Ring:
    """``slots`` places of ``slot_bytes`` each, beginning at ``at``."""

    at: int
    slot_bytes: int
    slots: int

    @property
    def end(self) -> int:
        """Where the next ring begins."""
        return self.at + self.slot_bytes * self.slots

    def place(self, number: int) -> int:
        """Return where the record of this number lies."""
        return self.at + number % self.slots * self.slot_bytes


LABELS = Ring(4096, 256, 64)  # never overwritten: who it is, and the names of its methods
TEXTS = Ring(LABELS.end, 256, 320)  # lines that somebody told
ROUNDS = Ring(TEXTS.end, 64, 512)  # one for each step, or for each call where there are no steps
NUMBERS = Ring(ROUNDS.end, 64, 1984)
RINGS = (LABELS, TEXTS, ROUNDS, NUMBERS)
SIZE_BYTES = NUMBERS.end
assert SIZE_BYTES == 256 << 10
assert LABELS.at >= _WORDS_AT + 8 * WORDS


class RecordKind(IntEnum):
    """What a record says."""

    TITLE = 1
    ACTOR = 2
    STDERR = 3
    METHOD = 4
    EVENT = 5
    END = 6
    MEMORY = 7
    CALLS = 8
    COLLECTION = 9
    STEPS = 10  # a round of steps
    CALL_ROUND = 11  # a round of calls
    GROUP = 12


_ROUND = struct.Struct("=qqQQI")  # first, last, the least and the most private bytes, method
_FORMS: dict[RecordKind, struct.Struct] = {  # a method is the place of its first word, 0 for none
    RecordKind.MEMORY: struct.Struct("=qQQQfI"),  # step, private, shared, device, node_ratio, method
    RecordKind.CALLS: struct.Struct("=IIII"),  # method, and since its last such record begun, ended; running
    RecordKind.COLLECTION: struct.Struct("=fII"),  # seconds, times, found since the last such record
    RecordKind.STEPS: _ROUND,
    RecordKind.CALL_ROUND: _ROUND,
}


class Record(NamedTuple):
    """One record as it was read: of text or of numbers. ``at_ns`` is monotonic."""

    kind: RecordKind
    number: int
    at_ns: int
    text: str = ""
    numbers: tuple[Any, ...] = ()


class Header(NamedTuple):
    """Whose recording it is (``rayguard.process.identity.owner_mark``), and its clocks."""

    mark: str
    wall_ns: int
    monotonic_ns: int


def words_span() -> tuple[int, int]:
    """Return where the live words begin and end."""
    return _WORDS_AT, _WORDS_AT + 8 * WORDS


def method_at(number: int) -> int:
    """Return which word is the first of the ``number``-th method (from 0)."""
    return _GLOBAL_WORDS + number * _METHOD_WORDS


def header(one: Header) -> bytes:
    """Return the beginning of a recording."""
    packed = _HEADER.pack(_MAGIC, _VERSION, one.mark.encode("ascii"), one.wall_ns, one.monotonic_ns)
    return packed + _CRC.pack(zlib.crc32(packed))


def packed(kind: RecordKind, *numbers: float) -> bytes:
    """Return the body of a record of numbers."""
    return _FORMS[kind].pack(*numbers)


def packed_text(line: str, ring: Ring) -> bytes:
    """Return the body of a record of text, cut to what a slot of ``ring`` holds."""
    return line.encode("utf-8", "replace")[: ring.slot_bytes - _SLOT_HEAD]


def slot(kind: RecordKind, number: int, at_ns: int, body: bytes) -> bytes:
    """Return one record as it lies in its slot."""
    rest = _SLOT.pack(kind, len(body), number, at_ns) + body
    return _CRC.pack(zlib.crc32(rest)) + rest


def read_header(data: bytes) -> Header | None:
    """Return who wrote ``data``; None when it is no recording."""
    if len(data) < SIZE_BYTES:
        return None
    magic, version, mark, wall_ns, monotonic_ns = _HEADER.unpack_from(data)
    (crc,) = _CRC.unpack_from(data, _HEADER.size)
    if (magic, version, crc) != (_MAGIC, _VERSION, zlib.crc32(data[: _HEADER.size])):
        return None
    return Header(mark.rstrip(b"\0").decode("ascii", "replace"), wall_ns, monotonic_ns)


def read_words(data: bytes) -> tuple[int, ...]:
    """Return the live words."""
    return struct.unpack_from(f"={WORDS}Q", data, _WORDS_AT)


def names(labels: Iterable[Record]) -> dict[int, str]:
    """Return the names of the methods that these labels tell of, by the place of their first word."""
    told = (one.text.partition(" ") for one in labels if one.kind is RecordKind.METHOD)
    return {int(at): name for at, _, name in told if at.isdecimal() and int(at) <= WORDS - _METHOD_WORDS}


def read_ring(data: bytes, ring: Ring) -> list[Record]:
    """Return the whole records of ``ring``, oldest first; whatever the bytes are, it raises nothing."""
    return sorted(_whole(data, ring), key=lambda record: record.number)


def _whole(data: bytes, ring: Ring) -> Iterator[Record]:
    for place in range(ring.slots):
        at = ring.at + place * ring.slot_bytes
        (crc,) = _CRC.unpack_from(data, at)
        kind, length, number, at_ns = _SLOT.unpack_from(data, at + _CRC.size)
        end = at + _SLOT_HEAD + length
        if end > at + ring.slot_bytes or number % ring.slots != place:
            continue
        if crc != zlib.crc32(data[at + _CRC.size : end]):
            continue
        record = _record(kind, number, at_ns, data[at + _SLOT_HEAD : end])
        if record is not None:
            yield record


def _record(kind: int, number: int, at_ns: int, body: bytes) -> Record | None:
    try:
        known = RecordKind(kind)
        if known not in _FORMS:
            return Record(known, number, at_ns, text=body.decode("utf-8", "replace"))
        return Record(known, number, at_ns, numbers=_FORMS[known].unpack(body))
    except (ValueError, struct.error):  # a kind of a later version, or not ours
        return None
