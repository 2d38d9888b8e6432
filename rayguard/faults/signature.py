"""One known way to fail: what it looks like, what it is, what helps.

Conditions are small callables that answer one question about one ``Witness``; a ``When`` joins them with
*and*, a ``Signature`` joins its ``When`` with *or*. Which signature wins is ``rayguard.faults.diagnose``;
where they come from is ``rayguard.faults.catalog``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol

from rayguard.faults.quote import frame_quote

if TYPE_CHECKING:
    import re

    from rayguard.faults.diagnosis import Kind, Scope
    from rayguard.faults.fault import Frame
    from rayguard.faults.witness import Origin, Said, Source, Witness


class Tier(IntEnum):
    """How much a fact says about the root cause; a lower tier is believed before a higher one.

    A log holds all three of one failure: what went wrong (``CAUSE``), what that did to others, and may be
    the cause itself where nothing better is known (``EFFECT``: a time-out, a refused connection), and that
    something ended (``END``). A ``GUESS`` judges an exception that no other signature knows by where it was
    raised; it then counts as an effect.
    """

    CAUSE = 0
    EFFECT = 1
    END = 2
    GUESS = 3


class Condition(Protocol):
    """One question about one witness."""

    def __call__(self, witness: Witness, /) -> bool:
        """Say whether the witness is so."""


@dataclass(frozen=True, slots=True)
class SaysLike:
    """The message matches one of the patterns."""

    patterns: tuple[re.Pattern[str], ...]

    def __call__(self, witness: Witness) -> bool:
        """Search the message."""
        return any(pattern.search(witness.text) for pattern in self.patterns)


@dataclass(frozen=True, slots=True)
class Place:
    """A file by the end of its path (or a folder of it), and a function in it where one is named."""

    path: str
    function: str = ""

    def holds(self, frame: Frame) -> bool:
        """Say whether ``frame`` is in this place."""
        if self.function and self.function != frame.function.rpartition(".")[2]:
            return False
        return not self.path or _is_in(self.path, frame.file)


@lru_cache(maxsize=4_096)  # the same few files stand in all tracebacks of a job
def _is_in(path: str, file: str) -> bool:
    file = file.replace("\\", "/")
    return file.startswith(path) or f"/{path}" in file


@dataclass(frozen=True, slots=True)
class PassedThrough:
    """Some frame of the traceback is in one of the places. They may be hundreds: a table leads to them."""

    places: tuple[Place, ...]
    by_function: dict[str, tuple[Place, ...]] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        """Sort the places by the function they name."""
        table: dict[str, tuple[Place, ...]] = {}
        for place in self.places:
            table[place.function] = (*table.get(place.function, ()), place)
        object.__setattr__(self, "by_function", table)

    def __call__(self, witness: Witness) -> bool:
        """Look at all frames."""
        anywhere = self.by_function.get("", ())
        for frame in witness.frames:
            here = self.by_function.get(frame.function.rpartition(".")[2], ()) if frame.function else ()
            if any(place.holds(frame) for place in (*here, *anywhere)):
                return True
        return False


@dataclass(frozen=True, slots=True)
class RaisedIn:
    """The innermost frame is in one of the places."""

    places: tuple[Place, ...]

    def __call__(self, witness: Witness) -> bool:
        """Look at the last frame."""
        return bool(witness.frames) and any(place.holds(witness.frames[-1]) for place in self.places)


@dataclass(frozen=True, slots=True)
class RaisedAt:
    """The source line that raised contains one of the fragments: what tells bare assertions apart."""

    fragments: tuple[str, ...]

    def __call__(self, witness: Witness) -> bool:
        """Look at the last frame's source line, and at the message for an assertion that quotes itself."""
        code = witness.frames[-1].code if witness.frames else ""
        return any(fragment in code or fragment in witness.text for fragment in self.fragments)


@dataclass(frozen=True, slots=True)
class InRole:
    """The process that saw it has one of the roles."""

    roles: frozenset[str]

    def __call__(self, witness: Witness) -> bool:
        """Look at the role."""
        return witness.role in self.roles


@dataclass(frozen=True, slots=True)
class SeenIn:
    """The fact is of one of these sources."""

    sources: frozenset[Source]

    def __call__(self, witness: Witness) -> bool:
        """Look at the source."""
        return witness.source in self.sources


@dataclass(frozen=True, slots=True)
class ExitedWith:
    """The process ended with one of these codes (negative: by a signal); an empty set means any ending."""

    codes: frozenset[int]

    def __call__(self, witness: Witness) -> bool:
        """Look at the exit code."""
        return witness.source.value == "exit" and (not self.codes or witness.exitcode in self.codes)


@dataclass(frozen=True, slots=True)
class During:
    """The call that failed is one of these operations."""

    operations: frozenset[str]

    def __call__(self, witness: Witness) -> bool:
        """Look at the operation, with or without the class it is a method of."""
        operation = witness.operation
        return operation in self.operations or operation.rpartition(".")[2] in self.operations


@dataclass(frozen=True, slots=True)
class FromCodeOf:
    """The exception was raised in code of this origin, and nothing deeper is known."""

    origin: Origin

    def __call__(self, witness: Witness) -> bool:
        """Look at the root of the chain."""
        return witness.root and witness.origin is self.origin


@dataclass(frozen=True, slots=True)
class CutOff:
    """It is a traceback whose last line, which names the exception, is missing."""

    def __call__(self, witness: Witness) -> bool:
        """Look for a type."""
        return bool(witness.frames) and not witness.names


@dataclass(frozen=True, slots=True)
class When:
    """All of these at once, of one witness.

    ``types`` (bare or qualified names, any of them) and ``text`` (plain fragments of the message, any of
    them) stand apart from the other conditions: ``rayguard.faults.index`` finds by them which blocks can
    match at all. ``beside`` holds fragments of which one stands in some fact of the same failure. Where
    ``times`` is more than 1, its fragments were said that often in all.
    """

    types: frozenset[str] = frozenset()
    text: tuple[str, ...] = ()
    conditions: tuple[Condition, ...] = ()
    beside: tuple[str, ...] = ()
    times: int = 1

    @property
    def code(self) -> tuple[str, ...]:
        """The fragments of the source line that raised, for people."""
        asked = (condition for condition in self.conditions if isinstance(condition, RaisedAt))
        return tuple(fragment for condition in asked for fragment in condition.fragments)

    @property
    def places(self) -> tuple[str, ...]:
        """The files and functions it is about, for people."""
        told: list[str] = []
        for condition in self.conditions:
            if isinstance(condition, (RaisedIn, PassedThrough)):
                told += (place.function or place.path for place in condition.places)
        return tuple(told)

    def match(self, witness: Witness, said: Said) -> bool:
        """Say whether this one witness is so in every respect. ``said``: the texts of all witnesses."""
        if self.types and self.types.isdisjoint(witness.names):
            return False
        if self.text and not any(fragment in witness.text for fragment in self.text):
            return False
        if not all(condition(witness) for condition in self.conditions):
            return False
        if self.times > 1 and sum(map(said.times, self.text)) < self.times:
            return False
        return not self.beside or any(said.times(fragment) for fragment in self.beside)


@dataclass(frozen=True, slots=True)
class Match:
    """A signature that fits, and the fact that says so."""

    signature: Signature
    witness: Witness

    @property
    def tier(self) -> Tier:
        """How much to believe it: a warning that looks like a cause is only an effect."""
        tier = Tier.EFFECT if self.signature.tier is Tier.GUESS else self.signature.tier
        return Tier(min(tier + self.witness.mild, Tier.END))

    @property
    def evidence(self) -> tuple[str, ...]:
        """The fact that decided, quoted, and where it was called from."""
        callers = self.witness.frames[:-1][-1:]
        called = (f"called from {frame_quote(frame)}" for frame in callers)
        return (self.witness.evidence, *called)


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """One known way to fail. See the head of ``signatures/`` files for what the fields mean to a reader."""

    id: str
    kind: Kind
    scope: Scope
    cause: str
    confidence: float
    when: tuple[When, ...]
    unless: tuple[When, ...] = ()
    tier: Tier = Tier.CAUSE
    cures: tuple[str, ...] = ()
    retry_same_settings: bool = True
    deterministic: bool = False
    settings_help: bool = True
    poisoned: bool = False
    advice: str = ""
    links: tuple[str, ...] = ()
    versions: tuple[str, ...] = ()

    def excludes(self, witness: Witness, said: Said) -> bool:
        """Say whether ``witness`` is one of its look-alikes."""
        return any(when.match(witness, said) for when in self.unless)
