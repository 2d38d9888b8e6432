"""Settings as ``section.key=value`` words: OmegaConf's dotlist (EasyR1) and Hydra's overrides (verl)."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING

from rayguard.dialects.dialect import Changed, Command
from rayguard.dialects.spelling import text_of
from rayguard.dialects.values import value_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_WORD = re.compile(r"(\+{0,2})([^\s=+~-][^\s=]*)=(.*)", re.DOTALL)
_PLAIN = re.compile(r"[\w./:+@%-]+", re.ASCII)  # neither reader takes it for more than text
_REFERENCE = re.compile(r"\$\{([\w.]+)\}")
_DEEPEST = 5  # references within references


def said_of(words: Sequence[str]) -> dict[str, object]:
    """Return what words set, by their keys; the last one wins."""
    found = (_WORD.fullmatch(word) for word in words)
    return {one[2]: value_of(one[3]) for one in found if one is not None}


def word_of(key: str, value: object) -> str:
    """Return a word that sets ``key``."""
    text = text_of(value)
    as_it_is = _PLAIN.fullmatch(text) and (not isinstance(value, str) or value_of(text) == value)
    return f"{key}={text if as_it_is else json.dumps(text, ensure_ascii=False)}"


def put(
    command: Command,
    start: int,
    values: Mapping[str, object],
    *,
    out: Sequence[str] = (),
    refused: Mapping[str, str] | None = None,
) -> Changed:
    """Return a command that sets these keys, each once and at its end, where it wins.

    Args:
        command: As it stands.
        start: Where its words begin that set something.
        values: By key; one that may not be there in the framework's own configuration begins with ``++``.
        out: Keys that are to be set no longer.
        refused: What could not be written.
    """
    bare = {key.lstrip("+"): key for key in values}
    kept: list[str] = list(command.words[:start])
    for word in command.words[start:]:
        found = _WORD.fullmatch(word)
        if found is not None and found[2] in bare:
            bare[found[2]] = f"{found[1]}{found[2]}" if found[1] else bare[found[2]]  # who wrote it knew why
        elif found is None or found[2] not in out:
            kept.append(word)
    written = tuple(word_of(bare[key.lstrip("+")], value) for key, value in values.items())
    return Changed(
        command=replace(command, words=(*kept, *written)), written=written, refused=dict(refused or {})
    )


def text_at(values: Mapping[str, object], key: str) -> str | None:
    """Return a text with what it refers to (``${other.key}``) put in; None where that is not known."""
    text = values.get(key)
    for _ in range(_DEEPEST):
        if text is None or "${" not in str(text):
            break
        text = _REFERENCE.sub(lambda one: str(values.get(one[1], one[0])), str(text))
    return None if text is None or "${" in str(text) else str(text)
