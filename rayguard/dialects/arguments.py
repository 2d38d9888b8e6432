"""Settings as ``--name value`` words, for Python's argparse: written so that each stands once, and wins."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from typing import TYPE_CHECKING

from rayguard.dialects.dialect import Changed, Command
from rayguard.dialects.spelling import text_of
from rayguard.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence


def option_of(name: str, value: object) -> tuple[str, ...]:
    """Return the words of an option."""
    text = text_of(value)
    if text.startswith("-"):  # argparse would take it for an option of its own
        return (f"--{name}={text}",)
    return (f"--{name}", text)


def unfolded(kept: Mapping[str, object]) -> tuple[str, ...]:
    """Return what a file keeps by name as the words that would say it."""
    words: list[str] = []
    for name, value in kept.items():
        if isinstance(value, list):
            words += [f"--{name}", *map(str, value)]
        elif value is not None:
            words += option_of(name, json.dumps(value) if isinstance(value, dict) else value)
    return tuple(words)


def variables_of(kept: object) -> dict[str, str]:
    """Return the environment that a file sets.

    Raises:
        ConfigError: It is no mapping.
    """
    if kept is None:
        return {}
    if not isinstance(kept, dict):
        raise ConfigError(f"a file of options sets variables by name, NAME: value; got {kept!r}")
    return {str(name): str(value) for name, value in kept.items()}


def put(  # noqa: PLR0913 - a command is its words and its environment
    command: Command,
    start: int,
    options: Mapping[str, object],
    *,
    flags: Collection[str] = (),
    out: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    refused: Mapping[str, str] | None = None,
) -> Changed:
    """Return a command with these options, each once and at its end, where it wins.

    Args:
        command: As it stands.
        start: Where the words of its framework begin; those before them are a launcher's.
        options: By name, without dashes.
        flags: Names of options without a value. One that is to be off is cut out: nothing that is appended
            takes it back.
        out: Names of options that are to be there no longer.
        environment: What is to be set in it.
        refused: What could not be written.
    """
    there = {name for name, _ in _options(command.words[start:])}
    gone = [name for name in out if _plain(name) in there]
    words: list[tuple[str, ...]] = []
    for name, value in options.items():
        if name not in flags:
            words.append(option_of(name, value))
        elif value:
            words.append((f"--{name}",))
        elif _plain(name) in there:
            gone.append(name)
    cut = {_plain(name): name in flags for name in (*options, *out)}
    changed = replace(
        command,
        words=(
            *command.words[:start],
            *_without(command.words[start:], cut),
            *(one for w in words for one in w),
        ),
        environment={**command.environment, **(environment or {})},
    )
    written = (
        *(f"{name}={value}" for name, value in (environment or {}).items()),
        *map(shlex.join, words),
        *(f"(without --{name})" for name in gone),
    )
    return Changed(command=changed, written=written, refused=dict(refused or {}))


def _options(words: Sequence[str]) -> Iterator[tuple[str, int]]:
    """Yield the options that stand there, and where."""
    for at, word in enumerate(words):
        if word.startswith("--") and word != "--":
            yield _plain(word[2:].partition("=")[0]), at


def _without(words: Sequence[str], cut: Mapping[str, bool]) -> Iterator[str]:
    """Yield the words without some options, and without their values where they are no flags."""
    places = {at: name for name, at in _options(words) if name in cut}
    for at, word in enumerate(words):
        before = at - 1
        of_it = before in places and not cut[places[before]] and "=" not in words[before]
        if at not in places and not (of_it and not word.startswith("--")):
            yield word


def _plain(name: str) -> str:
    return name.replace("-", "_")
