"""A pool's ledger byte by byte: what was asked, what came of it, what was answered, what is forgotten.

A record is whole or it does not count: its length, a crc32, and a pickle of plain values (numbers, text,
bytes and containers of them; nothing else is written or loaded). What stands behind the first torn record is
not read. Values only; the file is ``ledger``.
"""

from __future__ import annotations

import contextlib
import io
import pickle
import struct
import zlib
from array import array
from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from rayguard.actors.pool.request import Request
from rayguard.actors.pool.result import Sample
from rayguard.engine.generated import Generated

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

ACCEPTED, PROGRESSED, AFRESH, ANSWERED, GONE = 1, 2, 3, 4, 5  # kinds of records

HEADER = b"rgpool\0\1"
_RECORD = struct.Struct("<II")  # length of the body, its crc
_PLAIN = (bool, int, float, str)
_NAMES_A_CLASS = pickle.STACK_GLOBAL
_SAMPLE = tuple(f.name for f in fields(Sample) if f.name not in {"generated", "prompt_token_ids"})
_sample_values = attrgetter(*_SAMPLE)


@dataclass(frozen=True, slots=True)
class Owed:
    """A request that was accepted and not answered, with its tokens as far as they were heard of."""

    request: Request
    fingerprint: str
    generated: Generated


@dataclass(frozen=True, slots=True)
class Answered:
    """A request that was answered: its sample, kept for a caller that asks again."""

    fingerprint: str
    sample: Sample


@dataclass(frozen=True, slots=True)
class Past:
    """What a ledger holds, in the order in which it was accepted and answered."""

    owed: Sequence[Owed] = ()
    answered: Mapping[str, Answered] = field(default_factory=dict)


class _Writer(pickle.Pickler):
    """Makes plain what derives from plain (numpy's ``float64``, an ``IntEnum``) and refuses all else."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, type) and obj in _PLAIN:
            return NotImplemented  # by its name, which ``_Reader`` knows
        for plain in _PLAIN:
            if isinstance(obj, plain):
                return plain, (plain(obj),)
        raise pickle.PicklingError(f"{type(obj).__name__} is no plain value")


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        for plain in _PLAIN:
            if (module, name) == ("builtins", plain.__name__):
                return plain
        raise pickle.UnpicklingError(f"{module}.{name} is no plain value")


def _record(*values: Any) -> bytes:
    return _framed(pickle.dumps(values, 5))


def _framed(body: bytes) -> bytes:
    return _RECORD.pack(len(body), zlib.crc32(body)) + body


def accepted(request: Request, fingerprint: str) -> bytes:
    """Return the record of a request that the pool has taken."""
    options, prompt = (
        _plain(request.sampling),
        request.prompt if isinstance(request.prompt, str) else _ids(request.prompt),
    )
    return _record(ACCEPTED, request.id, request.group, request.index, prompt, options, fingerprint)


def _plain(options: Mapping[str, Any]) -> bytes:
    with contextlib.suppress(Exception):
        packed = pickle.dumps(options, 5)
        if _NAMES_A_CLASS not in packed:  # nor a number that looks like it
            return packed
    buffer = io.BytesIO()
    _Writer(buffer, 5).dump(options)
    return buffer.getvalue()


def progressed(request_id: str, start: int, more: Generated) -> bytes:
    """Return the record of tokens from index ``start`` on."""
    return _record(PROGRESSED, request_id, start, _packed(more))


def afresh(request_id: str) -> bytes:
    """Return the record that the tokens known of a request are void."""
    return _record(AFRESH, request_id)


def answered(request_id: str, fingerprint: str, sample: Sample) -> bytes:
    """Return the record of an answer."""
    prompt = _ids(sample.prompt_token_ids)
    return _record(
        ANSWERED, request_id, fingerprint, prompt, _sample_values(sample), _packed(sample.generated)
    )


def gone(request_ids: Sequence[str]) -> bytes:
    """Return the record that nobody waits for these requests, nor asks for their answers."""
    return _record(GONE, list(request_ids))


def _ids(tokens: Sequence[int]) -> bytes:
    return array("q", tokens).tobytes()  # a third of the time that the numbers take one by one


def _tokens(packed: bytes) -> tuple[int, ...]:
    ids = array("q")
    ids.frombytes(packed)
    return tuple(ids)


def _packed(made: Generated) -> tuple[Any, ...]:
    arrays = (made.tokens, made.ids, made.logprobs, made.ranks)
    return (made.width, *(column.tobytes() for column in arrays), made.versions)


def _unpacked(width: int, *columns: Any) -> Generated:
    *packed, versions = columns
    made = Generated(width=width, versions=versions)
    into: tuple[array[Any], ...] = (made.tokens, made.ids, made.logprobs, made.ranks)
    for column, data in zip(into, packed, strict=True):
        column.frombytes(data)
    return made


def whole(data: bytes) -> Iterator[tuple[int, int, tuple[Any, ...]]]:
    """Yield place, size and values of each record until the first that is torn; 0 is of no kind."""
    at = len(HEADER)
    while data.startswith(HEADER) and at + _RECORD.size <= len(data):
        length, crc = _RECORD.unpack_from(data, at)
        end = at + _RECORD.size + length
        body = data[at + _RECORD.size : end]
        if end > len(data) or zlib.crc32(body) != crc:
            return
        yield at, end - at, _loaded(body)
        at = end


def _loaded(body: bytes) -> tuple[Any, ...]:
    with contextlib.suppress(Exception):  # it may raise anything, for what something else has written
        values = _Reader(io.BytesIO(body)).load()
        if isinstance(values, tuple) and len(values) > 1:
            return values
    return 0, ""


@dataclass(slots=True)
class _Open:
    request: Request
    fingerprint: str
    pieces: list[Generated] = field(default_factory=list)
    tokens: int = 0


class Folder:
    """Makes a ``Past`` of records, one after the other."""

    def __init__(self) -> None:
        self._open: dict[str, _Open] = {}
        self._answered: dict[str, Answered] = {}

    def add(self, values: tuple[Any, ...]) -> None:
        """Take one record. Raises whatever it raises, for one that another version of this file wrote."""
        kind, name = values[:2]
        if kind == ACCEPTED:
            group, index, prompt, options, fingerprint = values[2:]
            prompt = prompt if isinstance(prompt, str) else _tokens(prompt)
            sampling = _Reader(io.BytesIO(options)).load()
            request = Request(id=name, group=group, index=index, prompt=prompt, sampling=sampling)
            self._open[name] = _Open(request, fingerprint)
        elif kind == PROGRESSED:
            self._join(name, values[2], _unpacked(*values[3]))
        elif kind == AFRESH and name in self._open:
            self._open[name].pieces, self._open[name].tokens = [], 0
        elif kind == ANSWERED:
            fingerprint, prompt, said, made = values[2:]
            self._open.pop(name, None)
            self._answered[name] = Answered(fingerprint, _sample(_tokens(prompt), said, _unpacked(*made)))
        elif kind == GONE:
            for each in name:
                self._open.pop(each, None)
                self._answered.pop(each, None)

    def _join(self, name: str, start: int, more: Generated) -> None:
        """Add tokens that go on from what is here: as the book does."""
        known = self._open.get(name)
        if known is None or start > known.tokens:
            return
        fresh = more.since(known.tokens - start)
        if len(fresh):
            known.pieces.append(fresh)
            known.tokens += len(fresh)

    def past(self) -> Past:
        """Return what is owed and what was answered."""
        owed = [Owed(o.request, o.fingerprint, _joined(o.pieces)) for o in self._open.values()]
        return Past(owed, self._answered)


def _sample(prompt: tuple[int, ...], said: tuple[Any, ...], made: Generated) -> Sample:
    return Sample(**dict(zip(_SAMPLE, said, strict=True)), prompt_token_ids=prompt, generated=made)


def _joined(pieces: list[Generated]) -> Generated:
    """Put pieces together, two by two: each token is copied a few times, not once for each piece."""
    while len(pieces) > 1:
        pairs = [a.plus(b) for a, b in zip(pieces[::2], pieces[1::2], strict=False)]
        pieces = pairs + pieces[len(pairs) * 2 :]
    return pieces[0] if pieces else Generated()
