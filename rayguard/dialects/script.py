"""Which script a command runs: where its own words begin, its text, and a launcher put in front of it."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

from rayguard.dialects.options import LAUNCHING
from rayguard.dialects.words import program_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rayguard.dialects.dialect import Command


def script_start(words: Sequence[str]) -> int | None:
    """Return where the words of TRL's command or of a script begin; None where there is no script."""
    if program_of(words)[0] == "trl":
        return 2
    for at, word in enumerate(words):
        module = words[at - 1] == "-m" and at > 0 and word not in LAUNCHING
        if module or word.endswith(".py"):
            return at + 1
    return None


def own_at(words: Sequence[str]) -> int:
    """Return the same, and the end of the words where there is no script."""
    start = script_start(words)
    return len(words) if start is None else start


def script_text(command: Command) -> str | None:
    """Return the text of the script that runs; None where it is not here."""
    start = script_start(command.words)
    if start is None or start > len(command.words):
        return None
    word = command.words[start - 1]
    if program_of(command.words)[0] == "trl":
        package = package_folder("trl")
        path = package and package / "scripts" / f"{word}.py"
    else:
        path = command.folder / (word if word.endswith(".py") else f"{word.replace('.', '/')}.py")
    try:
        return path.read_text() if path else None
    except (OSError, ValueError):  # ValueError: no text, or no path
        return None


def package_folder(name: str) -> Path | None:
    """Return where a package is installed, without importing it; None where it is not."""
    try:
        spec = importlib.util.find_spec(name)
    except ValueError:  # something else stands under its name
        return None
    places = spec and spec.submodule_search_locations
    return Path(next(iter(places))) if places else None


def with_accelerate(words: Sequence[str]) -> tuple[str, ...]:
    """Return the words with a launcher in front, for the same Python."""
    script = own_at(words) - 1
    before = list(words[:script])
    module = before[-1:] == ["-m"]
    if module:
        before.pop()
    if before in (["python"], ["python3"]):
        before = ["accelerate", "launch"]
    else:  # this one's own, with its flags
        before += ["-m", "accelerate.commands.launch"]
    return (*before, *(["-m"] * module), *words[script:])
