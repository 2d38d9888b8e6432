"""The catalog in use: ours, with what the user and installed packages add to it.

Later ones are asked first and may redefine an id: packages (entry points ``rayguard.catalogs``, each a path
or a callable that returns YAML), the files of ``RAYGUARD_CATALOG``, the files named on a command line.
"""

from __future__ import annotations

import logging
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TYPE_CHECKING

from rayguard.errors import ConfigError
from rayguard.faults.catalog import Catalog, default_catalog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rayguard.faults.signature import Signature

GROUP = "rayguard.catalogs"

_Addition = tuple[str, "Callable[[Catalog], Catalog]"]  # what it is called, and how it is added


@lru_cache(maxsize=1)
def catalog_in_use() -> Catalog:
    """Return the catalog for the guard. Never raises: what cannot be read is logged once and left out."""
    catalog = default_catalog()
    for addition in _additions():
        catalog = _or_as_it_was(catalog, addition)
    return catalog


def _or_as_it_was(catalog: Catalog, addition: _Addition) -> Catalog:
    name, add = addition
    try:
        return add(catalog)
    except ConfigError as error:
        logging.getLogger("rayguard").warning("the catalog %s is left out: %s", name, error)
        return catalog


def catalog_for(paths: Sequence[Path] = ()) -> Catalog:
    """Return the catalog for a person, with the files ``paths`` first. Raises ``ConfigError``."""
    catalog = default_catalog()
    for _, add in (*_additions(), *map(_of_file, paths)):
        catalog = add(catalog)
    return catalog


def _additions() -> Iterator[_Addition]:
    """Yield what is to be added, in order."""
    from rayguard.config import Settings  # noqa: PLC0415 - pydantic-settings is only needed here

    for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
        yield _of_package(point)
    try:
        files = Settings().catalogs
    except ConfigError as error:
        yield "RAYGUARD_CATALOG", _refusing(error)
        return
    yield from map(_of_file, files)


def signatures_in(path: Path) -> tuple[Signature, ...]:
    """Return the signatures of a user's file. Raises ``ConfigError``."""
    try:
        return Catalog(()).with_user(path).signatures
    except ConfigError:
        raise
    except (ValueError, RecursionError) as error:  # yaml: a date that is none, lists without end
        raise ConfigError(f"cannot read the catalog {path}: {error}") from error


def _of_file(path: Path) -> _Addition:
    return str(path), lambda catalog: catalog.with_signatures(signatures_in(path))


def _refusing(error: ConfigError) -> Callable[[Catalog], Catalog]:
    def refuse(_: Catalog) -> Catalog:
        raise error

    return refuse


def _of_package(point: EntryPoint) -> _Addition:
    name = f"{GROUP}:{point.name} ({point.value})"

    def add(catalog: Catalog) -> Catalog:
        try:
            offered = point.load()
            text = offered() if callable(offered) else Path(offered).read_text(encoding="utf-8")
        except Exception as error:  # a stranger's module
            raise ConfigError(f"the entry point {name} gives no catalog: {error!r}") from error
        if not isinstance(text, str):
            raise ConfigError(f"the entry point {name} gave {type(text).__name__}, not YAML text")
        return catalog.with_signatures(Catalog.from_yaml(text, name).signatures)

    return name, add
