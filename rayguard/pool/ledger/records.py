"""A pool's ledger byte by byte: what was asked, what came of it, what was answered, what is forgotten.

A record is whole or it does not count: its length, a crc32, and a pickle of plain values (numbers, text,
bytes and containers of them; nothing else is written, and no class is loaded). What stands behind the first
torn record is not read. Values only; the file is ``request_ledger``.
"""

from __future__ import annotations

import contextlib
import io
import pickle
import struct
import zlib
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import Any, NoReturn

from typing_extensions import override

from rayguard.engine.generated import Generated
from rayguard.pool.values.request import Request
from rayguard.pool.values.result import Sample

ACCEPTED, PROGRESSED, AFRESH, ANSWERED, GONE, LOGGED = 1, 2, 3, 4, 5, 6  # kinds of records

HEADER = b"rgpool\0\1"
_RECORD = struct.Struct("<II")  # length of the body, its crc
_NAMES_A_CLASS = pickle.STACK_GLOBAL
_SAMPLE = tuple(f.name for f in fields(Sample) if f.name not in {"generated", "prompt_token_ids"})
_sample_values = attrgetter(*_SAMPLE)


# -- written


def _record(*values: object) -> bytes:
    body = pickle.dumps(values, 5)
    return _RECORD.pack(len(body), zlib.crc32(body)) + body


def accepted(request: Request, fingerprint: str) -> bytes:
    """Return the record of a request that the pool has taken."""
    prompt = request.prompt if isinstance(request.prompt, str) else _ids(request.prompt)
    options = _options(request.sampling)
    return _record(ACCEPTED, request.id, request.group, request.index, prompt, options, fingerprint)


def progressed(request_id: str, start: int, more: Generated) -> bytes:
    """Return the record of tokens from index ``start`` on."""
    return _record(PROGRESSED, request_id, start, _packed(more))


def afresh(request_id: str) -> bytes:
    """Return the record that the tokens known of a request are void."""
    return _record(AFRESH, request_id)


def answered(request_id: str, fingerprint: str, sample: Sample) -> bytes:
    """Return the record of an answer."""
    prompt, made = _ids(sample.prompt_token_ids), _packed(sample.generated)
    return _record(ANSWERED, request_id, fingerprint, prompt, _sample_values(sample), made)


def gone(request_ids: Sequence[str]) -> bytes:
    """Return the record that nobody waits for these requests, nor asks for their answers."""
    return _record(GONE, list(request_ids))


def logged(token_log: str, node: str) -> bytes:
    """Return the record that an actor on ``node`` keeps its tokens in this file; until it is ``gone``."""
    return _record(LOGGED, token_log, node)


def _options(options: Mapping[str, object]) -> bytes:
    with contextlib.suppress(Exception):
        packed = pickle.dumps(options, 5)
        if _NAMES_A_CLASS not in packed:  # nor a number that looks like it
            return packed
    return pickle.dumps(_plain(options), 5)


def _plain(value: object) -> object:
    """Return as plain what derives from plain (numpy's ``float64``, an ``IntEnum``); refuse all else."""
    if value is None or isinstance(value, (bool, bytes)):
        return value
    for plain in (int, float, str):
        if isinstance(value, plain):
            return plain(value)
    if isinstance(value, Mapping):
        return {_plain(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    raise pickle.PicklingError(f"{type(value).__name__} is no plain value")


def _ids(tokens: Sequence[int]) -> bytes:
    return array("q", tokens).tobytes()  # a third of the time that the numbers take one by one


def _packed(made: Generated) -> tuple[object, ...]:
    arrays = (made.tokens, made.ids, made.logprobs, made.ranks)
    return (made.width, *(column.tobytes() for column in arrays), made.versions)


# -- read


class _Reader(pickle.Unpickler):
    @override
    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"{module}.{name} is no plain value")


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


def _request(name: str, group: str, index: int, prompt: str | bytes, options: bytes) -> Request:
    asked = prompt if isinstance(prompt, str) else _tokens(prompt)
    sampling = _Reader(io.BytesIO(options)).load()
    return Request(id=name, group=group, index=index, prompt=asked, sampling=sampling)


def _sample(prompt: bytes, values: tuple[Any, ...], made: tuple[Any, ...]) -> Sample:
    known = dict(zip(_SAMPLE, values, strict=True))
    return Sample(**known, prompt_token_ids=_tokens(prompt), generated=_unpacked(*made))


def _unpacked(width: int, *packed: Any) -> Generated:
    *columns, versions = packed
    made = Generated(width=width, versions=versions)
    into: tuple[array[int] | array[float], ...] = (made.tokens, made.ids, made.logprobs, made.ranks)
    for column, data in zip(into, columns, strict=True):
        column.frombytes(data)
    return made


def _tokens(packed: bytes) -> tuple[int, ...]:
    ids = array("q")
    ids.frombytes(packed)
    return tuple(ids)


# -- what they add up to


@dataclass(slots=True)
class Owed:
    """A request that was accepted and not answered, with its tokens as far as they were heard of."""

    request: Request
    fingerprint: str
    pieces: list[Generated] = field(default_factory=list)
    tokens: int = 0

    def join(self, start: int, more: Generated) -> None:
        """Add tokens that go on from what is here: as the book does."""
        fresh = more.since(self.tokens - start) if start <= self.tokens else Generated()
        if len(fresh):
            self.pieces.append(fresh)
            self.tokens += len(fresh)

    @property
    def generated(self) -> Generated:
        """Its tokens, put together two by two: each is copied a few times, not once for each piece."""
        while len(self.pieces) > 1:
            pairs = [a.plus(b) for a, b in zip(self.pieces[::2], self.pieces[1::2], strict=False)]
            self.pieces = pairs + self.pieces[len(pairs) * 2 :]
        return self.pieces[0] if self.pieces else Generated()


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
    logs: Mapping[str, str] = field(default_factory=dict)  # nodes, by the token logs of the actors there


@dataclass(slots=True)
class Kept:
    """Where the records of one request are, each as offset << 32 | size."""

    places: array[int] = field(default_factory=lambda: array("Q"))
    size: int = 0

    def add(self, at: int, size: int) -> None:
        """Count a record that is in the file."""
        self.places.append(at << 32 | size)
        self.size += size


class Replay:
    """Takes in records, in their order.

    Invariant: ``owed`` and ``answers`` say where those lie that count, for each request of ``past``.
    """

    def __init__(self) -> None:
        self.owed: dict[str, Kept] = {}
        self.answers: dict[str, Kept] = {}
        self._open: dict[str, Owed] = {}
        self._answered: dict[str, Answered] = {}
        self._logs: dict[str, str] = {}

    def add(self, values: tuple[Any, ...], at: int, size: int) -> None:
        """Take one record. Raises whatever it raises, for one that another version of this file wrote."""
        kind, name, *rest = values
        if kind == ACCEPTED:
            *asked, fingerprint = rest
            self._open[name] = Owed(_request(name, *asked), fingerprint)
            self.owed[name] = Kept()
        elif kind == ANSWERED:
            fingerprint, *made = rest
            self._answered[name] = Answered(fingerprint, _sample(*made))
            self._forget_owed(name)
            self.answers[name] = Kept()
        elif kind == LOGGED:
            self._logs[name] = rest[0]
            self.owed[name] = Kept()
        elif kind == GONE:
            for each in name:
                self._forget(each)
        else:
            self._made(kind, name, rest)
        kept = None if kind == GONE else self.answers.get(name) if kind == ANSWERED else self.owed.get(name)
        if kept is not None:
            kept.add(at, size)

    def _made(self, kind: int, name: str, rest: Sequence[Any]) -> None:
        owed = self._open.get(name)
        if owed is not None and kind == PROGRESSED:
            owed.join(rest[0], _unpacked(*rest[1]))
        elif owed is not None and kind == AFRESH:
            owed.pieces, owed.tokens = [], 0

    def _forget(self, name: str) -> None:
        self._forget_owed(name)
        self._answered.pop(name, None)
        self.answers.pop(name, None)
        self._logs.pop(name, None)

    def _forget_owed(self, name: str) -> None:
        self._open.pop(name, None)
        self.owed.pop(name, None)

    def past(self) -> Past:
        """Return what is owed and what was answered."""
        return Past(list(self._open.values()), self._answered, self._logs)
