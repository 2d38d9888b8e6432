"""The words of a command: its program, its options by name."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from rayguard.preflight_checks.dialects.values import value_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_HERE = ("0.0.0.0", "localhost", "127.0.0.1")  # noqa: S104 - as a client of this machine writes it


def options_of(words: Sequence[str]) -> dict[str, object]:
    """Return the options of a command, with underscores; True for one without a value, the last one wins."""
    found: dict[str, object] = {}
    for at, word in enumerate(words):
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            following = words[at + 1] if at + 1 < len(words) else "--"
            found[name.replace("-", "_")] = value_of(value) if equals else _value(following)
    return found


def program_of(words: Sequence[str]) -> tuple[str, str]:
    """Return the name of the program, and the module that a Python runs ('' for none)."""
    program = PurePosixPath(words[0]).name if words else ""
    module = words[words.index("-m") + 1] if program.startswith("python") and "-m" in words[:-1] else ""
    return program, module


def serves_here(options: Mapping[str, object]) -> bool:
    """Say whether its options tell that the server which a trainer samples from is on this machine."""
    said = options.get("vllm_server_base_url") or options.get("vllm_server_host")
    if said is None and "config" in options:  # a file may name another one
        return False
    said = said or _HERE[0]
    host = str(said).partition("://")[2] or str(said)
    return host.partition("/")[0].partition(":")[0] in _HERE


def _value(following: str) -> object:
    return True if following.startswith("--") else value_of(following)
