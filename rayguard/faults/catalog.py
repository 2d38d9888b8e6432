"""The known ways to fail, most specific first: read from ``signatures/``, checked once, then immutable.

A mistake in a catalog file is reported with the signature and the key it is in. A user's own file goes
first (``Catalog.with_user``). ``signatures/README.md`` says how to write a signature.
"""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import resources
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import yaml
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from rayguard.errors import ConfigError
from rayguard.faults.diagnosis import Kind, Scope  # noqa: TC001 - pydantic reads the annotations
from rayguard.faults.fault import Role  # noqa: TC001 - pydantic reads the annotations
from rayguard.faults.index import Index
from rayguard.faults.signature import (
    Condition,
    CutOff,
    During,
    ExitedWith,
    FromCodeOf,
    InRole,
    PassedThrough,
    Place,
    RaisedAt,
    RaisedIn,
    SaysLike,
    SeenIn,
    Signature,
    Tier,
    When,
)
from rayguard.faults.witness import Origin, Source

if TYPE_CHECKING:
    from collections.abc import Iterable

# The files in signatures/, in the order in which they are asked.
SUBJECTS = ("engine", "device", "collectives", "ray", "system", "training", "code")
MIN_FRAGMENT = 4  # a shorter fragment of text is in every message
MAX_BACKTRACKING = 1_000  # steps a pattern may try from one place of the text

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the C one is ten times faster
_REPEAT = re.compile(r"\{(\d*)(?:(,)(\d*))?\}")


def _linear(pattern: str) -> str:
    """Refuse a pattern whose time can grow faster than the text: a fault may carry anything."""
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
    return pattern


def _exit_code(value: object) -> object:
    if isinstance(value, str):
        try:
            return -int(signal.Signals[value])
        except KeyError:
            raise ValueError(f"{value!r} is no signal; write SIGKILL, SIGSEGV ... or a number") from None
    return value


def _one_or_many(value: object) -> object:
    return value if isinstance(value, list) else [value]


_Many = BeforeValidator(_one_or_many)
Fragment = Annotated[str, Field(min_length=MIN_FRAGMENT)]
Pattern = Annotated[str, AfterValidator(_linear)]
ExitCode = Annotated[int, BeforeValidator(_exit_code)]
SafeSetting = Literal[
    "async_scheduling_off",
    "chunked_prefill_off",
    "prefix_caching_off",
    "eager",
    "fewer_sequences",
    "one_sequence",
]
_STRICT = ConfigDict(extra="forbid", frozen=True)


class WhenSpec(BaseModel):
    """One block under ``when`` or ``not``: everything in it must hold for one and the same fact."""

    model_config = _STRICT

    types: Annotated[list[Fragment], _Many] = []
    text: Annotated[list[Fragment], _Many] = []
    message: Annotated[list[Pattern], _Many] = []
    frames: Annotated[list[Fragment], _Many] = []
    raised_in: Annotated[list[Fragment], _Many] = []
    code: Annotated[list[Fragment], _Many] = []
    roles: Annotated[list[Role], _Many] = []
    seen_in: Annotated[list[Source], _Many] = []
    exit: Annotated[list[ExitCode | Literal["any"]], _Many] = []
    operations: Annotated[list[str], _Many] = []
    raised_by: Origin | None = None
    cut: Literal[True] | None = None
    beside: Annotated[list[Fragment], _Many] = []
    times: Annotated[int, Field(ge=1, le=100)] = 1

    def compile(self) -> When:
        """Return the conditions, the cheap ones first."""
        parts: tuple[tuple[object, Condition], ...] = (
            (self.seen_in, SeenIn(frozenset(self.seen_in))),
            (self.roles, InRole(frozenset(role.value for role in self.roles))),
            (self.exit, ExitedWith(frozenset(code for code in self.exit if code != "any"))),
            (self.operations, During(frozenset(self.operations))),
            (self.raised_by, FromCodeOf(self.raised_by or Origin.USER)),
            (self.cut, CutOff()),
            (self.raised_in, RaisedIn(_places(self.raised_in))),
            (self.frames, PassedThrough(_places(self.frames))),
            (self.code, RaisedAt(tuple(self.code))),
            (self.message, SaysLike(tuple(re.compile(pattern) for pattern in self.message))),
        )
        conditions = tuple(condition for asked, condition in parts if asked)
        if not (conditions or self.types or self.text):
            raise ValueError("an empty block matches everything")
        if self.message and not (self.types or self.text):
            raise ValueError("`message` needs `types` or `text` beside it, which tell cheaply when to look")
        if self.times > 1 and not self.text:
            raise ValueError("`times` counts the fragments of `text`, and there are none")
        return When(
            types=frozenset(self.types),
            text=tuple(self.text),
            conditions=conditions,
            beside=tuple(self.beside),
            times=self.times,
        )


class SignatureSpec(BaseModel):
    """One entry of a catalog file."""

    model_config = _STRICT

    id: Annotated[str, Field(pattern=r"^[a-z0-9_]+(\.[a-z0-9_]+)+$")]
    kind: Kind
    scope: Scope
    cause: Annotated[str, Field(min_length=10)]
    advice: Annotated[str, Field(min_length=10)]
    confidence: Annotated[float, Field(gt=0, le=1)]
    when: Annotated[list[WhenSpec], _Many, Field(min_length=1)]
    unless: Annotated[list[WhenSpec], _Many, Field(alias="not")] = []
    tier: Literal["cause", "effect", "end", "guess"] = "cause"
    cures: Annotated[list[SafeSetting], _Many] = []
    retry_same_settings: bool = True
    deterministic: bool = False
    settings_help: bool = True
    poisoned: bool = False
    links: Annotated[list[Annotated[str, Field(pattern=r"^https://")]], _Many] = []
    versions: Annotated[list[str], _Many] = []

    def compile(self) -> Signature:
        """Return the signature as the diagnosis uses it."""
        if self.deterministic and self.retry_same_settings:
            raise ValueError(
                "`deterministic` contradicts `retry_same_settings`: the same settings fail again"
            )
        return Signature(
            id=self.id,
            kind=self.kind,
            scope=self.scope,
            cause=self.cause,
            advice=self.advice,
            confidence=self.confidence,
            when=tuple(block.compile() for block in self.when),
            unless=tuple(block.compile() for block in self.unless),
            tier=Tier[self.tier.upper()],
            cures=tuple(self.cures),
            retry_same_settings=self.retry_same_settings,
            deterministic=self.deterministic,
            settings_help=self.settings_help,
            poisoned=self.poisoned,
            links=tuple(self.links),
            versions=tuple(self.versions),
        )


def _places(texts: list[str]) -> tuple[Place, ...]:
    parts = (text.partition("::") for text in texts)
    return tuple(Place(path, function) for path, _, function in parts)


@dataclass(frozen=True, slots=True)
class Catalog:
    """Signatures in the order in which they are asked. ``ours``: the ids of those that ship with rayguard."""

    signatures: tuple[Signature, ...]
    ours: frozenset[str] = frozenset()
    index: Index = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        """Make the index, once."""
        object.__setattr__(self, "index", Index(self.signatures))

    def __reduce__(self) -> tuple[type[Catalog], tuple[tuple[Signature, ...], frozenset[str]]]:
        """Pickle the signatures; the index is made anew."""
        return (type(self), (self.signatures, self.ours))

    @classmethod
    def from_yaml(cls, text: str, name: str = "catalog") -> Catalog:
        """Read a catalog file's text; ``name`` is what errors call it."""
        return cls(_signatures(text, name))

    def with_user(self, path: str | Path) -> Catalog:
        """Return this catalog with the signatures of a user's file first; the same id replaces ours."""
        path = Path(path)
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"cannot read the catalog {path}: {error}") from error
        return self.with_signatures(_signatures(text, str(path)))

    def with_signatures(self, users: tuple[Signature, ...]) -> Catalog:
        """Return this catalog with ``users`` asked first; the same id replaces ours."""
        taken = {signature.id for signature in users}
        kept = (signature for signature in self.signatures if signature.id not in taken)
        return Catalog((*users, *kept), self.ours - taken)

    def named(self, identifier: str) -> Signature | None:
        """Return the signature with this id."""
        return next((signature for signature in self.signatures if signature.id == identifier), None)


def _signatures(text: str, name: str) -> tuple[Signature, ...]:
    try:
        data = yaml.load(text, Loader=_LOADER)  # noqa: S506 - a safe loader, see _LOADER
    except yaml.YAMLError as error:
        raise ConfigError(f"{name} is no YAML: {error}") from error
    entries = data.get("signatures") if isinstance(data, dict) else None
    if not isinstance(entries, list):
        raise ConfigError(f"{name} needs a list under the key `signatures`")
    return _unique((_signature(entry, n, name) for n, entry in enumerate(entries, start=1)), name)


def _unique(signatures: Iterable[Signature], name: str) -> tuple[Signature, ...]:
    found: dict[str, Signature] = {}
    for signature in signatures:
        if signature.id in found:
            raise ConfigError(f"{name}: signature {signature.id!r} stands there twice; ids are unique")
        found[signature.id] = signature
    return tuple(found.values())


def _signature(entry: object, number: int, name: str) -> Signature:
    title = entry.get("id") if isinstance(entry, dict) else None
    which = f"{name}: signature {title!r} (number {number})"
    try:
        return SignatureSpec.model_validate(entry).compile()
    except ValidationError as error:
        wrong = "; ".join(
            f"key `{'.'.join(str(part) for part in one['loc']) or 'entry'}`: {one['msg']}"
            for one in error.errors()
        )
        raise ConfigError(f"{which}: {wrong}") from error
    except ValueError as error:
        raise ConfigError(f"{which}: {error}") from error


@lru_cache(maxsize=1)
def default_catalog() -> Catalog:
    """Return the catalog that ships with rayguard; read on first use, so that imports stay free."""
    folder = resources.files("rayguard.faults").joinpath("signatures")
    files = (folder.joinpath(f"{subject}.yaml") for subject in SUBJECTS)
    read = (_signatures(file.read_text(encoding="utf-8"), file.name) for file in files)
    signatures = _unique(chain.from_iterable(read), "signatures/")
    return Catalog(signatures, frozenset(signature.id for signature in signatures))
