"""One known way to fail, as a catalog file says it: what it looks like, what it is, what helps.

A ``When`` joins what must hold for one ``Witness`` with *and*, a ``Signature`` joins its ``When`` with *or*.
Which signature wins is ``rayguard.faults.diagnose``; where they come from is ``rayguard.faults.catalog``.
``signatures/README.md`` says what each key means.
"""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    ValidationInfo,
    model_validator,
)

from rayguard.faults.diagnosis import Kind, Scope  # noqa: TC001 - pydantic reads the annotations
from rayguard.faults.expression import Expression
from rayguard.faults.fault import Role  # noqa: TC001 - pydantic reads the annotations
from rayguard.faults.quote import frame_quote
from rayguard.faults.witness import Origin, Said, Source, Witness

if TYPE_CHECKING:
    from typing_extensions import Self

    from rayguard.faults.fault import Frame

MIN_FRAGMENT = 4  # a shorter fragment of text is in every message
CHECKED = "checked"  # context of a validation: rayguard's own signatures, which its tests check
MAX_BACKTRACKING = 1_000  # steps a pattern may try from one place of the text
_REPEAT = re.compile(r"\{(\d*)(?:(,)(\d*))?\}")


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


def _linear(pattern: object, info: ValidationInfo) -> Expression:
    """Refuse a pattern whose time can grow faster than the text: a fault may carry anything.

    Not in a catalog that was read before (``CHECKED``): to compile a thousand takes most of a second.
    """
    if not isinstance(pattern, str):
        raise ValueError(f"{pattern!r} is no text")  # noqa: TRY004 - what pydantic takes
    if info.context != CHECKED:
        _refuse_slow(pattern)
    return Expression(pattern)


def _refuse_slow(pattern: str) -> None:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"{pattern!r} is no regular expression: {error}") from error
    plain = re.sub(r"\[\^?\]?[^\]]*\]", "c", re.sub(r"\\.", "e", pattern))
    if re.search(r"(?<!\()[*+]", plain):
        raise ValueError(f"{pattern!r}: `*` and `+` are not bounded; write {{0,200}} instead")
    if re.search(r"\)\{", plain):
        raise ValueError(f"{pattern!r}: a repeated group may hold another repeat; spell it out")
    steps = 1
    for low, comma, high in _REPEAT.findall(plain):
        if comma and not high:
            raise ValueError(f"{pattern!r}: a repeat without an upper bound; write {{{low},200}} instead")
        steps *= int(high or low or 1)
    if steps > MAX_BACKTRACKING:
        raise ValueError(f"{pattern!r}: its repeats multiply to {steps} tries, more than {MAX_BACKTRACKING}")


def _exit_code(value: object) -> object:
    if isinstance(value, str) and value != "any":
        try:
            return -int(signal.Signals[value])
        except KeyError:
            raise ValueError(f"{value!r} is no signal; write SIGKILL, SIGSEGV ... or a number") from None
    return value


def _tier(value: object) -> object:
    names = [tier.name.lower() for tier in Tier]
    if value not in names:
        raise ValueError(f"{value!r} is no tier; write one of {', '.join(names)}")
    return Tier(names.index(str(value)))


Many = BeforeValidator(lambda value: value if isinstance(value, list) else [value])
Fragment = Annotated[str, Field(min_length=MIN_FRAGMENT)]
Fragments = Annotated[tuple[Fragment, ...], Many]
Pattern = Annotated[Expression, PlainValidator(_linear)]
ExitCode = Annotated[int | Literal["any"], BeforeValidator(_exit_code)]
SafeSetting = Literal[
    "async_scheduling_off",
    "chunked_prefill_off",
    "prefix_caching_off",
    "eager",
    "fewer_sequences",
    "one_sequence",
]
STRICT = ConfigDict(extra="forbid", frozen=True)


class When(BaseModel):
    """All of these at once, of one witness: one block under ``when`` or ``not``.

    By ``types`` and ``text``, ``rayguard.faults.index`` finds which blocks can match at all.
    """

    model_config = STRICT

    types: Annotated[frozenset[Fragment], Many] = frozenset()
    text: Fragments = ()
    message: Annotated[tuple[Pattern, ...], Many] = ()
    frames: Fragments = ()
    raised_in: Fragments = ()
    code: Fragments = ()
    roles: Annotated[tuple[Role, ...], Many] = ()
    seen_in: Annotated[tuple[Source, ...], Many] = ()
    exit: Annotated[tuple[ExitCode, ...], Many] = ()
    operations: Annotated[tuple[str, ...], Many] = ()
    raised_by: Origin | None = None
    cut: Literal[True] | None = None
    own_attribute: Literal[True] | None = None
    beside: Fragments = ()
    times: Annotated[int, Field(ge=1, le=100)] = 1

    @model_validator(mode="after")
    def _asks_something(self) -> Self:
        if not any(getattr(self, name) for name in type(self).model_fields.keys() - {"beside", "times"}):
            raise ValueError("an empty block matches everything")
        if self.message and not (self.types or self.text):
            raise ValueError("`message` needs `types` or `text` beside it, which tell cheaply when to look")
        if self.times > 1 and not self.text:
            raise ValueError("`times` counts the fragments of `text`, and there are none")
        return self

    @cached_property
    def _through(self) -> Places:
        return _by_function(self.frames)

    @cached_property
    def _innermost(self) -> Places:
        return _by_function(self.raised_in)

    @property
    def places(self) -> tuple[str, ...]:
        """The files and functions it is about, for people."""
        parts = (place.partition("::") for place in (*self.raised_in, *self.frames))
        return tuple(function or path for path, _, function in parts)

    def match(self, witness: Witness, said: Said) -> bool:
        """Say whether this one witness is so in every respect. ``said``: the texts of all witnesses."""
        return (
            (not self.types or not self.types.isdisjoint(witness.names))
            and (not self.text or any(fragment in witness.text for fragment in self.text))
            and self._is_seen_by(witness)
            and self._is_raised_by(witness)
            and (not self.message or any(pattern.search(witness.text) for pattern in self.message))
            and (self.times == 1 or sum(map(said.times, self.text)) >= self.times)
            and (not self.beside or any(map(said.times, self.beside)))
        )

    def _is_seen_by(self, witness: Witness) -> bool:
        """Look at who saw it, and how."""
        operation = witness.operation
        return (
            (not self.seen_in or witness.source in self.seen_in)
            and (not self.roles or witness.role in self.roles)
            and (
                not self.exit
                or (witness.source is Source.EXIT and not {witness.exitcode, "any"}.isdisjoint(self.exit))
            )
            and (
                not self.operations
                or operation in self.operations
                or operation.rpartition(".")[2] in self.operations  # without its class
            )
        )

    def _is_raised_by(self, witness: Witness) -> bool:
        """Look at the code that raised: at the message too, for an assertion that quotes itself."""
        frames = witness.frames
        code = frames[-1].code if self.code and frames else ""
        return (
            (self.raised_by is None or (witness.root and witness.origin is self.raised_by))
            and (not self.cut or (bool(frames) and not witness.names))
            and (not self.own_attribute or _is_own_attribute(witness.text, frames))
            and (not self.raised_in or any(_is_at(frame, self._innermost) for frame in frames[-1:]))
            and (not self.frames or any(_is_at(frame, self._through) for frame in frames))
            and (not self.code or any(fragment in code or fragment in witness.text for fragment in self.code))
        )


_MISSING = re.compile(r"object has no attribute '(\w{1,80})'")


def _is_own_attribute(text: str, frames: tuple[Frame, ...]) -> bool:
    """Say whether the attribute that is missing is one of the object whose method asks for it."""
    found = _MISSING.search(text)
    return bool(found and frames) and f"self.{found[1]}" in frames[-1].code if found else False


Places = dict[str, tuple[str, ...]]  # ends of paths, or folders, by the function in them ("": any)


def _by_function(places: tuple[str, ...]) -> Places:
    """Sort places by the function they name: they may be hundreds."""
    table: Places = {}
    for place in places:
        path, _, function = place.partition("::")
        table[function] = (*table.get(function, ()), path)
    return table


def _is_at(frame: Frame, places: Places) -> bool:
    paths = (*places.get(frame.function.rpartition(".")[2], ()), *places.get("", ()))
    return any(_is_in(path, frame.file) for path in paths)


@lru_cache(maxsize=4_096)  # the same few files stand in all tracebacks of a job
def _is_in(path: str, file: str) -> bool:
    file = file.replace("\\", "/")
    return file.startswith(path) or f"/{path}" in file


class Signature(BaseModel):
    """One known way to fail: one entry of a catalog file."""

    model_config = STRICT

    id: Annotated[str, Field(pattern=r"^[a-z0-9_]+(\.[a-z0-9_]+)+$")]
    kind: Kind
    scope: Scope
    cause: Annotated[str, Field(min_length=10)]
    advice: Annotated[str, Field(min_length=10)]
    confidence: Annotated[float, Field(gt=0, le=1)]
    when: Annotated[tuple[When, ...], Many, Field(min_length=1)]
    unless: Annotated[tuple[When, ...], Many, Field(alias="not")] = ()
    tier: Annotated[Tier, BeforeValidator(_tier)] = Tier.CAUSE
    cures: Annotated[tuple[SafeSetting, ...], Many] = ()
    retry_same_settings: bool = True
    deterministic: bool = False
    settings_help: bool = True
    poisoned: bool = False
    if_warned: bool = True
    links: Annotated[tuple[Annotated[str, Field(pattern=r"^https://")], ...], Many] = ()
    versions: Annotated[tuple[str, ...], Many] = ()

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> Self:
        if self.deterministic and self.retry_same_settings:
            raise ValueError(
                "`deterministic` contradicts `retry_same_settings`: the same settings fail again"
            )
        return self

    def excludes(self, witness: Witness, said: Said) -> bool:
        """Say whether ``witness`` is one of its look-alikes."""
        return any(when.match(witness, said) for when in self.unless)


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
