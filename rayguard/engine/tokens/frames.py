"""A token log byte by byte: packed by its writer, taken apart by a reader that trusts nothing.

A log is a header and frames. A frame is whole or it does not count: it has its length and a crc32 of all of
itself, and one word of the header commits it: how many bytes are valid, and in which generation. A cleared
file begins another generation, which each crc includes: no earlier frame comes back. Another word says how
many tokens have reached the writer since it wrote some: they are lost if it dies now. Whatever the bytes are,
``parse`` raises nothing and gives of each request only tokens that were written for it, from its first on.

Values only. The mapped file is ``file``, its writer ``log``.
"""

from __future__ import annotations

import struct
import zlib
from array import array
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from rayguard.engine.generated import Generated

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    _Requests = dict[int, tuple[str, "Logged"]]  # by number: the request's id, and what came of it

BEGIN, APPEND, END = 1, 2, 3  # kinds of frames

_MAGIC, _VERSION = b"rgtokens", 2
# Native byte order: a log is read on the machine that wrote it, and arrays go in as they are.
_OWNER = struct.Struct("=8sI32s")  # magic, version, the writer's mark (rayguard.process.identity)
_CRC = struct.Struct("=I")
_BEHIND = struct.Struct("=Q")  # tokens that came since the last ones were written
_COMMIT = struct.Struct("=Q")  # generation, valid bytes: 32 bits each
BEHIND_AT = _OWNER.size + _CRC.size
assert BEHIND_AT % _BEHIND.size == 0  # as below
COMMIT_AT = BEHIND_AT + _BEHIND.size
assert COMMIT_AT % _COMMIT.size == 0  # one aligned store writes it
HEADER_BYTES = COMMIT_AT + _COMMIT.size
_LOW = (1 << 32) - 1

_FRAME = struct.Struct("=II")  # kind, length of the body; a crc of both and the body follows
FRAME_BYTES = _FRAME.size + _CRC.size
_BEGUN = struct.Struct("=QII")  # number, bytes of the request id, bytes of the fingerprint
_ENTRY = struct.Struct("=QIIIII")  # number, index of the first token, tokens, width, ranks, bytes of spans
_SPAN = struct.Struct("=II")  # index of the first token, bytes of the version
_NUMBER_BYTES = 8
_ITEM_BYTES = 4  # a token, an id, a log-probability, a rank
END_BYTES = FRAME_BYTES + _NUMBER_BYTES  # ending n requests in one frame takes at most n times this


@dataclass(frozen=True, slots=True)
class Logged:
    """What a log knows of a request that was in flight: what was asked, and what came of it so far."""

    fingerprint: str
    generated: Generated


def header(mark: str) -> bytes:
    """Return the beginning of a log that has no frames yet; ``mark`` is its writer's ``owner_mark``."""
    owner = _OWNER.pack(_MAGIC, _VERSION, mark.encode("ascii"))
    crc = _CRC.pack(zlib.crc32(owner))
    return owner + crc + _BEHIND.pack(0) + _COMMIT.pack(commit(0, HEADER_BYTES))


def commit(generation: int, valid: int) -> int:
    """Return the word that makes the first ``valid`` bytes valid."""
    return (generation & _LOW) << 32 | valid


def frame(kind: int, body: bytes, generation: int = 0) -> bytes:
    """Return one frame."""
    start = _FRAME.pack(kind, len(body))
    return b"".join((start, _CRC.pack(_crc(start, body, generation)), body))


def _crc(start: bytes, body: bytes, generation: int) -> int:
    return zlib.crc32(body, zlib.crc32(start, generation & _LOW))


def begun(number: int, request_id: str, fingerprint: str) -> bytes:
    """Return the body of a BEGIN frame: from here on ``number`` stands for the request."""
    name, asked = _bytes(request_id), _bytes(fingerprint)
    return b"".join((_BEGUN.pack(number, len(name), len(asked)), name, asked))


def entry(number: int, start: int, more: Generated) -> bytes:
    """Return one entry of an APPEND frame: ``more`` of a request that has ``start`` tokens.

    Raises ``ValueError`` where ``more`` breaks its own invariant: half a row would make a frame false.
    """
    count, rows, ranks = len(more.tokens), len(more.tokens) * more.width, len(more.ranks)
    spans = _spans(more.versions)
    packed = b"".join(
        (
            _ENTRY.pack(number, start, count, more.width, ranks, len(spans)),
            more.tokens.tobytes(),
            more.ids.tobytes(),
            more.logprobs.tobytes(),
            more.ranks.tobytes(),
            spans,
        )
    )
    whole = _ENTRY.size + _ITEM_BYTES * (count + 2 * rows + ranks) + len(spans)
    if not (len(more.ids) == len(more.logprobs) == rows and ranks in (0, count) and len(packed) == whole):
        raise ValueError(
            f"{count} tokens with {len(more.ids)} ids, {len(more.logprobs)} logprobs, {ranks} ranks"
        )
    return packed


def ended(numbers: Iterable[int]) -> bytes:
    """Return the body of an END frame."""
    return array("Q", numbers).tobytes()


@lru_cache(maxsize=64)  # the same few weight versions in each entry: 1 us saved of 2
def _spans(versions: tuple[tuple[str, int], ...]) -> bytes:
    packed = [(start, _bytes(version)) for version, start in versions]
    return b"".join(_SPAN.pack(start, len(version)) + version for start, version in packed)


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")  # an id may hold half a character: it is the caller's


def committed(start: bytes) -> tuple[int, int]:
    """Return the generation and valid bytes of the file that begins with ``start``; 0 if it is no log."""
    if len(start) < HEADER_BYTES:
        return 0, 0
    magic, version, _ = _OWNER.unpack_from(start)
    (crc,) = _CRC.unpack_from(start, _OWNER.size)
    if (magic, version, crc) != (_MAGIC, _VERSION, zlib.crc32(start[: _OWNER.size])):
        return 0, 0
    (word,) = _COMMIT.unpack_from(start, COMMIT_AT)
    return word >> 32, word & _LOW


def behind(start: bytes) -> int | None:
    """Return how many tokens had reached the writer and are in no frame; None where it is no log."""
    if not committed(start)[1]:
        return None
    (tokens,) = _BEHIND.unpack_from(start, BEHIND_AT)
    return int(tokens)


def parse(data: bytes) -> dict[str, Logged]:
    """Return the requests in flight by id, as of the last frame before the first torn or false one."""
    requests: _Requests = {}
    with suppress(KeyError, ValueError, struct.error):
        for kind, body in _frames(data):
            _READ[kind](body, requests)
    return dict(requests.values())


def _frames(data: bytes) -> Iterator[tuple[int, bytes]]:
    generation, valid = committed(data)
    at, end = HEADER_BYTES, min(valid, len(data))
    while at + FRAME_BYTES <= end:
        kind, length = _FRAME.unpack_from(data, at)
        (crc,) = _CRC.unpack_from(data, at + _FRAME.size)
        start, at = data[at : at + _FRAME.size], at + FRAME_BYTES
        body = data[at : at + length]
        if at + length > end or crc != _crc(start, body, generation):
            return
        yield kind, body
        at += length


def _read_begin(body: bytes, requests: _Requests) -> None:
    number, name_bytes, asked_bytes = _BEGUN.unpack_from(body)
    asked_at = _BEGUN.size + name_bytes
    if asked_at + asked_bytes != len(body):
        raise ValueError("another length than it says")
    requests[number] = _text(body[_BEGUN.size : asked_at]), Logged(_text(body[asked_at:]), Generated())


def _read_append(body: bytes, requests: _Requests) -> None:
    for number, start, width, columns, spans in list(_entries(body)):  # all of a frame or nothing of it
        if number in requests:
            _, logged = requests[number]
            _take(logged.generated, start, width, columns, spans)


def _take(
    made: Generated, start: int, width: int, columns: list[bytes], spans: tuple[tuple[str, int], ...]
) -> None:
    """Add one entry if it continues what is here: a token behind a gap is worth nothing.

    ``Generated.plus`` without a copy for each entry: nobody else has ``made`` yet.
    """
    count = len(made.tokens)
    if start != count:
        return
    tokens, ids, logprobs, ranks = columns
    made.tokens.frombytes(tokens)
    made.ids.frombytes(ids)
    made.logprobs.frombytes(logprobs)
    made.ranks.frombytes(ranks)
    made.width = max(made.width, width)
    same = made.versions and spans and made.versions[-1][0] == spans[0][0]
    made.versions += tuple((version, count + first) for version, first in spans[1 if same else 0 :])


def _read_end(body: bytes, requests: _Requests) -> None:
    for number in array("Q", body):
        requests.pop(number, None)


_READ = {BEGIN: _read_begin, APPEND: _read_append, END: _read_end}


def _entries(body: bytes) -> Iterator[tuple[int, int, int, list[bytes], tuple[tuple[str, int], ...]]]:
    at = 0
    while at < len(body):
        number, start, count, width, ranks, span_bytes = _ENTRY.unpack_from(body, at)
        at += _ENTRY.size
        columns = []
        for items in (count, count * width, count * width, ranks):
            columns.append(body[at : at + _ITEM_BYTES * items])
            at += _ITEM_BYTES * items
        spans = _read_spans(body[at : at + span_bytes])
        at += span_bytes
        if at > len(body) or ranks not in (0, count):
            raise ValueError("more than there is, or ranks for some of the tokens")
        yield number, start, width, columns, spans


@lru_cache(maxsize=64)
def _read_spans(packed: bytes) -> tuple[tuple[str, int], ...]:
    spans, at = [], 0
    while at < len(packed):
        first, version_bytes = _SPAN.unpack_from(packed, at)
        at += _SPAN.size + version_bytes
        if at > len(packed):
            raise ValueError("a version that does not end")
        spans.append((_text(packed[at - version_bytes : at]), first))
    return tuple(spans)


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogatepass")
