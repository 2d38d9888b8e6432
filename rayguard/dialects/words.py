"""The words of a command: its program, its options by name, the folders it means."""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from rayguard.dialects.values import value_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rayguard.dialects.dialect import Command

_HERE = ("0.0.0.0", "localhost", "127.0.0.1")  # noqa: S104 - as a client of this machine writes it


def options_of(words: Sequence[str]) -> dict[str, object]:
    """Return the options of a command, with underscores; True for one without a value, the last one wins."""
    return {name: True if text is None else value_of(text) for name, text in option_texts_of(words).items()}


def option_texts_of(words: Sequence[str]) -> dict[str, str | None]:
    """Return the same as they were written; None for one without a value."""
    found: dict[str, str | None] = {}
    for at, word in enumerate(words):
        if word.startswith("--"):
            name, equals, text = word[2:].partition("=")
            following = words[at + 1] if at + 1 < len(words) else "--"
            alone = None if following.startswith("--") else following
            found[name.replace("-", "_")] = text if equals else alone
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


def folder_at(command: Command, text: str, *, home: bool = False) -> Path | None:
    """Return the folder that a command means by ``text``; None where its words run somewhere else.

    Where ``home`` is set, its framework takes ``~`` for the home of its user.
    """
    path = Path(os.path.expanduser(text) if home else text)  # noqa: PTH111 - no home is no error here
    submitted = program_of(command.words)[0] == "ray" and "submit" in command.words
    if submitted and not path.is_absolute():  # there, in a folder of the job's own
        return None
    return Path(os.path.abspath(command.folder / path))  # noqa: PTH100 - links stay as they were written


def lies_in(folder: Path | None, path: Path | None) -> bool:
    """Say whether ``path`` is in ``folder``, however deep."""
    return folder is not None and path is not None and folder in path.parents
