"""Whether a command that a page prints could be typed: it exists, and takes what it is given.

Commands are read as their own programs read them, and not carried out; of the system's own tools only the names
are looked at.
"""

from __future__ import annotations

import importlib.util
import re
import shlex
from typing import TYPE_CHECKING, Any

import tomllib
from packaging.requirements import Requirement

from tests.as_printed.pages import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_SYSTEM = {
    "awk", "cd", "curl", "df", "dmesg", "docker", "du", "export", "grep", "kill", "ps", "sort", "systemctl",
}  # fmt: skip
# What a reader puts in the place of a word of a page.
_MEANT = {
    "<id>": "3f2a",
    "<instance>": "10.0.0.1:9400",
    "<kind>": "engine_hang",
    "<log>": "train.log",
    "<pid>": "4711",
}
_ASSIGNMENT = re.compile(r"[A-Z_]+=")
_BETWEEN = {"&&", "|", ";"}
_FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_IN_TEXT = re.compile(r"`([a-z]+(?: [^`]+)?)`")


def commands_of(page: Path) -> list[str]:
    """Return the commands that stand within a page's sentences."""
    text = "".join(line for line in page.read_text(encoding="utf-8").splitlines(True) if "<!--" not in line)
    found = _IN_TEXT.findall(_FENCE.sub("", text))
    return [words for words in found if words.split()[0] in _SYSTEM | set(_READ) and " " in words]


def problem_of(command: str) -> str:
    """Say what is wrong with a command; nothing where it could be typed."""
    for placeholder, meant in _MEANT.items():
        command = command.replace(placeholder, meant)
    problems = [_problem(words) for words in _parts(shlex.split(command, comments=True))]
    return "; ".join(filter(None, problems))


def _parts(words: list[str]) -> list[list[str]]:
    parts: list[list[str]] = [[]]
    for word in words:
        if word in _BETWEEN:
            parts.append([])
        elif parts[-1] or not _ASSIGNMENT.match(word):  # VARIABLE=value before a command
            parts[-1].append(word)
    return [part for part in parts if part]


def _problem(words: list[str]) -> str:
    name, *arguments = words
    if name in _SYSTEM:
        return ""
    if name not in _READ:
        return f"nobody checks {name!r}: add it to tests/as_printed/commands.py"
    return _READ[name](arguments)


def _rayguard(arguments: list[str]) -> str:
    from typer.main import get_command

    from rayguard.cli.app import app

    return _read(get_command(app), "rayguard", arguments)


def _ray(arguments: list[str]) -> str:
    from ray.scripts.scripts import cli

    command = cli.commands.get(arguments[0])
    if command is None:
        return f"ray has no command {arguments[0]!r}"
    named = [word.partition("=")[0] for word in arguments[1:] if word.startswith("-")]
    known = {name for option in command.params for name in option.opts}
    return "; ".join(f"ray {arguments[0]} has no {name}" for name in named if name not in known)


def _read(command: Any, path: str, arguments: list[str]) -> str:
    """Let ``command`` of Typer read its arguments, down to the last command."""
    while hasattr(command, "commands"):
        if not arguments or arguments[0] not in command.commands:
            return f"{path} has no command {' '.join(arguments[:1])!r}"
        command, path, arguments = command.commands[arguments[0]], f"{path} {arguments[0]}", arguments[1:]
    try:
        command.make_context(path, list(arguments))
    except Exception as error:
        return f"{path}: {error.format_message() if hasattr(error, 'format_message') else error}"
    return ""


def _make(arguments: list[str]) -> str:
    made = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    targets = [word for word in arguments if "=" not in word]
    return "; ".join(f"nothing makes {target!r}" for target in targets if target not in made)


def _pip(arguments: list[str]) -> str:
    """Check what is installed against what the project declares."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = declared["optional-dependencies"]
    if arguments[:1] != ["install"]:
        return f"pip {' '.join(arguments[:1])} is not known here"
    for word in (word for word in arguments[1:] if not word.startswith("-")):
        wanted = Requirement(word)
        if wanted.name == declared["name"] and not wanted.extras <= set(extras):
            return f"there is no extra {word}"
    return ""


def _python(arguments: list[str]) -> str:
    if arguments[:1] != ["-m"]:
        return "only python -m is known here"
    found = importlib.util.find_spec(arguments[1])
    return "" if found else f"there is no module {arguments[1]}"


def _uv(arguments: list[str]) -> str:
    return _pip(arguments[1:]) if arguments[:1] == ["pip"] else "only uv pip is known here"


_READ: dict[str, Callable[[list[str]], str]] = {
    "make": _make,
    "pip": _pip,
    "python": _python,
    "ray": _ray,
    "rayguard": _rayguard,
    "uv": _uv,
}
