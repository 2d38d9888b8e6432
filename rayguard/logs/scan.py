"""The lines of a huge log that may say something: found in one pass, in bounded memory and linear time.

One automaton looks for the fragments and type names of all signatures and for what every traceback has;
only the lines round a hit are read by the slower parts. Pure: blocks of bytes in, numbered lines out.
What opens files is ``rayguard.logs.files``.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from ahocorasick_rs import BytesAhoCorasick, Implementation

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from rayguard.faults.catalog import Catalog

WHOLE_BYTES = 8 << 20  # what is smaller is read line by line,
WHOLE_LINES = 100_000  # if it has not more lines than these
BEFORE, AFTER = 60, 40  # lines round a hit
FIRST_HITS = 48  # of one anchor; then only each whose number is a power of two: the earliest cause counts
FIRST_HITS_WHEN_FULL = 4
FLOOD, COMMON = 30_000, 1_000  # after so many hits, anchors with so many are not looked for any more
MAX_LINES = 60_000  # that are kept of one text
TAIL_LINES = 2_000  # kept in any case: jobs end with what ended them

LONG_LINE = 8_000
_LINE_BYTES = 1 << 20  # an unfinished line is cut down when it has grown so long
_CONTEXT_BYTES = 256 << 10
_PART = 2_600  # of a long line: its beginning, the surroundings of the first hit, its end
_MAX_ANCHOR = 200
_CUT = " … ".encode()

# What `rayguard.logs.witnesses` takes for a fact without knowing a signature.
_GENERAL = (
    b"Traceback (most recent call last)",
    b'File "',
    b"Error",
    b"Exception",
    b"Timeout",
    b"Interrupt",
    b"ERROR",
    b"FATAL",
    b"CRITICAL",
)


class Numbered(NamedTuple):
    """One line as it was printed, and its number from 1."""

    number: int
    raw: bytes


class Anchors:
    """What to look for: made once for a catalog."""

    def __init__(self, catalog: Catalog) -> None:
        texts = [*catalog.index.fragments]
        for signature in catalog.signatures:
            texts += [name.rpartition(".")[2] for when in signature.when for name in when.types]
        known = (max(text.split("\n"), key=len).encode() for text in texts)
        self.patterns = tuple(
            dict.fromkeys((*_GENERAL, *(text[:_MAX_ANCHOR] for text in known if text.strip())))
        )
        self.finder = finder(self.patterns)


def finder(patterns: Iterable[bytes]) -> BytesAhoCorasick:
    """Return the automaton for ``patterns``; as a table it is twice as fast, and costs some milliseconds."""
    return BytesAhoCorasick(list(patterns), implementation=Implementation.DFA)


def telling(blocks: Iterable[bytes], anchors: Anchors, whole_bytes: int = WHOLE_BYTES) -> Iterator[Numbered]:
    """Yield the lines to be read: all of them where the text is small, else those round hits and the last."""
    blocks = iter(blocks)
    head: list[bytes] = []
    size = 0
    for block in blocks:
        head.append(block)
        size += len(block)
        if size > whole_bytes:
            yield from Scan(anchors).read(chain(head, blocks))
            return
    text = b"".join(head)
    if text.count(b"\n") > WHOLE_LINES:
        yield from Scan(anchors).read([text])
    else:
        yield from _numbered(text, 1, anchors.finder)


def _numbered(text: bytes, first: int, find: BytesAhoCorasick) -> list[Numbered]:
    lines = text.split(b"\n")
    if not lines[-1]:
        lines.pop()
    return [Numbered(number, shortened(line, find)) for number, line in enumerate(lines, start=first)]


def shortened(line: bytes, find: BytesAhoCorasick) -> bytes:
    """Return a line that is not longer than what is read of one, with the first hit in it."""
    if len(line) <= LONG_LINE:
        return line
    middle = _first_hit(line[_PART:-_PART], find)
    return _CUT.join(part for part in (line[:_PART], middle, line[-_PART:]) if part)


def _first_hit(text: bytes, find: BytesAhoCorasick) -> bytes:
    """Return the first hit and what stands round it. In pieces: each further hit would cost time."""
    for at in range(0, len(text), _PART):
        hits = find.find_matches_as_indexes(text[at : at + _PART + _MAX_ANCHOR])
        if hits:
            return text[max(at + hits[0][1] - _PART // 4, 0) :][:_PART]
    return b""


@dataclass(slots=True)
class Scan:
    """One pass over one text.

    Invariant: lines come in order, each at most once; memory does not grow with the text.
    """

    anchors: Anchors
    _find: BytesAhoCorasick = field(init=False)
    _alive: list[int] = field(init=False)  # the anchor for each pattern of the automaton
    _hits: list[int] = field(init=False)  # of each anchor, all of them
    _counted: list[int] = field(init=False)  # of each anchor, one for a burst
    _burst: list[int] = field(init=False)  # of each anchor, the last line of its burst
    _flood: int = 0  # hits since the last time that common anchors were dropped
    _owed: int = 0  # lines to come that belong to a window
    _last: int = 0  # the number of the last line given
    _given: int = 0
    _tail: deque[tuple[int, bytes]] = field(default_factory=lambda: deque(maxlen=2))

    def __post_init__(self) -> None:
        """Begin with all anchors."""
        count = len(self.anchors.patterns)
        self._find, self._alive = self.anchors.finder, list(range(count))
        self._hits, self._counted, self._burst = [0] * count, [0] * count, [0] * count

    def read(self, blocks: Iterable[bytes]) -> Iterator[Numbered]:
        """Yield the lines round hits, and the last, of the text in ``blocks``."""
        before, number = b"", 1  # whole lines that were looked at, and the number of the first of them
        for chunk in self._whole_lines(blocks):
            buffer = before + chunk
            yield from self._windows(buffer, len(before), number)
            self._tail.append((number + before.count(b"\n"), chunk))
            start = max(_back(buffer, len(buffer), BEFORE), _next_line(buffer, len(buffer) - _CONTEXT_BYTES))
            number += buffer.count(b"\n", 0, start)
            before = buffer[start:]
        yield from self._end()

    def _whole_lines(self, blocks: Iterable[bytes]) -> Iterator[bytes]:
        """Yield pieces that consist of whole lines; only the last may lack its end."""
        rest = b""
        for block in blocks:
            piece = rest + block
            end = piece.rfind(b"\n") + 1
            if end:
                yield piece[:end]
            rest = piece[end:]
            if len(rest) > _LINE_BYTES:
                rest = shortened(rest, self._find)
        if rest:
            yield rest

    def _windows(self, buffer: bytes, fresh: int, number: int) -> Iterator[Numbered]:
        """Yield what is to be kept of ``buffer``; up to ``fresh`` it was looked at before."""
        ranges: list[list[int]] = []
        if self._owed:
            end, self._owed = _forward(buffer, fresh, self._owed)
            ranges.append([fresh, end])
        for at in self._wanted(buffer, fresh, number):
            end, self._owed = _forward(buffer, _line_start(buffer, at), AFTER + 1)
            start = _back(buffer, _line_start(buffer, at), BEFORE)
            if ranges and start <= ranges[-1][1]:
                ranges[-1][1] = end
            else:
                ranges.append([start, end])
        place = 0
        for start, end in ranges:
            number += buffer.count(b"\n", place, start)
            place = start
            yield from self._give(buffer[start:end], number)

    def _wanted(self, buffer: bytes, fresh: int, number: int) -> Iterator[int]:
        """Yield the places of hits whose surroundings are to be kept, in order."""
        hits = self._find.find_matches_as_indexes(memoryview(buffer)[fresh:], overlapping=True)
        line, place = number, 0
        for which, start, _ in hits:
            anchor = self._alive[which]
            self._hits[anchor] += 1
            if fresh + start > place:  # hits come in the order of their ends
                line += buffer.count(b"\n", place, fresh + start)
                place = fresh + start
            if line <= self._burst[anchor]:
                continue
            self._burst[anchor] = line + AFTER
            self._counted[anchor] += 1
            if self._allowed(self._counted[anchor]):
                yield place
        self._flood += len(hits)
        if self._flood > FLOOD:
            self._forget()

    def _forget(self) -> None:
        """Look no more for what is common in this text: it drowns the rest, and each hit costs time."""
        self._flood = 0
        rare = [anchor for anchor in self._alive if self._hits[anchor] <= COMMON]
        if len(rare) < len(self._alive):
            self._alive, self._find = rare, finder(self.anchors.patterns[anchor] for anchor in rare)

    def _allowed(self, hit: int) -> bool:
        if self._given >= MAX_LINES:
            return False
        first = FIRST_HITS if self._given < MAX_LINES // 2 else FIRST_HITS_WHEN_FULL
        return hit <= first or hit & (hit - 1) == 0

    def _give(self, text: bytes, first: int) -> Iterator[Numbered]:
        for line in _numbered(text, first, self.anchors.finder):
            if line.number > self._last:
                self._last = line.number
                self._given += 1
                yield line

    def _end(self) -> Iterator[Numbered]:
        """Give the last lines of the text."""
        if not self._tail:
            return
        text = b"".join(chunk for _, chunk in self._tail)
        start = _back(text, len(text), TAIL_LINES)
        yield from self._give(text[start:], self._tail[0][0] + text.count(b"\n", 0, start))


def _line_start(text: bytes, at: int) -> int:
    return text.rfind(b"\n", 0, at) + 1


def _next_line(text: bytes, at: int) -> int:
    """Return where the first line begins that begins at ``at`` or later."""
    if at <= 0:
        return 0
    end = text.find(b"\n", at - 1)
    return len(text) if end < 0 else end + 1


def _back(text: bytes, start: int, lines: int) -> int:
    """Return where the line begins that stands ``lines`` before the one that begins at ``start``."""
    for _ in range(lines):
        if start <= 0:
            return 0
        start = text.rfind(b"\n", 0, start - 1) + 1
    return start


def _forward(text: bytes, start: int, lines: int) -> tuple[int, int]:
    """Return where ``lines`` lines end that begin at ``start``, and how many of them are still to come."""
    for done in range(lines):
        end = text.find(b"\n", start)
        if end < 0:
            return len(text), lines - done
        start = end + 1
    return start, 0
