"""The known ways to fail, most specific first: read from ``signatures/``, checked once, then immutable.

A mistake in a catalog file is reported with the signature and the key it is in. A user's own file goes
first (``Catalog.with_user``). ``signatures/README.md`` says how to write a signature.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from importlib import resources
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from pydantic import ValidationError

from rayguard.errors import ConfigError
from rayguard.faults.index import Index
from rayguard.faults.signature import CHECKED, Signature

if TYPE_CHECKING:
    from collections.abc import Iterable

# The files in signatures/, in the order in which they are asked.
SUBJECTS = ("engine", "device", "collectives", "ray", "system", "training", "code")
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the C one is ten times faster


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


def _signatures(text: str, name: str, context: str | None = None) -> tuple[Signature, ...]:
    try:
        data = yaml.load(text, Loader=_LOADER)  # noqa: S506 - a safe loader, see _LOADER
    except yaml.YAMLError as error:
        raise ConfigError(f"{name} is no YAML: {error}") from error
    entries = data.get("signatures") if isinstance(data, dict) else None
    if not isinstance(entries, list):
        raise ConfigError(f"{name} needs a list under the key `signatures`")
    return _unique((_signature(entry, n, name, context) for n, entry in enumerate(entries, start=1)), name)


def _unique(signatures: Iterable[Signature], name: str) -> tuple[Signature, ...]:
    found: dict[str, Signature] = {}
    for signature in signatures:
        if signature.id in found:
            raise ConfigError(f"{name}: signature {signature.id!r} stands there twice; ids are unique")
        found[signature.id] = signature
    return tuple(found.values())


def _signature(entry: object, number: int, name: str, context: str | None) -> Signature:
    title = entry.get("id") if isinstance(entry, dict) else None
    which = f"{name}: signature {title!r} (number {number})"
    try:
        return Signature.model_validate(entry, context=context)
    except ValidationError as error:
        wrong = "; ".join(
            f"key `{'.'.join(str(part) for part in one['loc']) or 'entry'}`: {one['msg']}"
            for one in error.errors()
        )
        raise ConfigError(f"{which}: {wrong}") from error


@lru_cache(maxsize=1)
def default_catalog() -> Catalog:
    """Return the catalog that ships with rayguard; read on first use, so that imports stay free."""
    folder = resources.files("rayguard.faults").joinpath("signatures")
    files = (folder.joinpath(f"{subject}.yaml") for subject in SUBJECTS)
    read = (_signatures(file.read_text(encoding="utf-8"), file.name, CHECKED) for file in files)
    signatures = _unique(chain.from_iterable(read), "signatures/")
    return Catalog(signatures, frozenset(signature.id for signature in signatures))
