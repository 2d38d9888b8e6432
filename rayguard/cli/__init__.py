"""The command line: ``rayguard`` answers at once what is asked most, the rest by ``rayguard.cli.app``.

Typer and what it loads take three times as long as the answer itself. So the plain forms of ``incidents`` and
``status`` are read here, word by word; what is not plain (help, mistakes, ``--follow``) is Typer's.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_FLAGS = {
    "incidents": {"--json": "as_json", "--stories": "stories"},
    "status": {"--json": "as_json"},
}
_VALUES: Mapping[str, Mapping[str, tuple[str, Callable[[str], Any]]]] = {
    "incidents": {"--last": ("last", int), "--id": ("identifier", str), "--home": ("home", Path)},
    "status": {"--home": ("home", Path)},
}
_PLACES = {"incidents": "incident"}


def main() -> None:
    """Run the command; the entry point of the package."""
    if sys.argv[1:] == ["--version"]:
        from importlib.metadata import version  # noqa: PLC0415 - 50 ms

        print(f"rayguard {version('rayguard')}")  # noqa: T201 - that is the answer
        return
    plain = plain_form(sys.argv[1:])
    if plain is None:
        from rayguard.cli.app import app  # noqa: PLC0415 - most calls go without

        app()
        return
    from rayguard.cli import here  # noqa: PLC0415 - not for other commands

    name, options = plain
    try:
        done = here.status(**options) if name == "status" else here.incidents(**options)
        sys.stdout.flush()
    except BrokenPipeError:  # who reads has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    if not done:  # a cluster is asked
        from rayguard.cli.app import app  # noqa: PLC0415

        app()


def plain_form(words: Sequence[str]) -> tuple[str, dict[str, Any]] | None:
    """Return the command and its options where all of ``words`` are understood, else None."""
    name = words[0] if words else ""
    if name not in _FLAGS:
        return None
    options: dict[str, Any] = {}
    rest = iter(words[1:])
    for word in rest:
        if word in _FLAGS[name]:
            options[_FLAGS[name][word]] = True
            continue
        option, of_type = _VALUES[name].get(word, (_PLACES.get(name, ""), str))
        value = next(rest, "") if word in _VALUES[name] else word
        if not option or option in options or not value or value.startswith("-"):
            return None
        try:
            options[option] = of_type(value)
        except ValueError:
            return None
    return None if options.get("last", 1) < 1 else (name, options)
