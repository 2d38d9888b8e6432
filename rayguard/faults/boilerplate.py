"""What is no evidence: boiler-plate in error texts, lines that healthy jobs print (``harmless.yaml``)."""

from __future__ import annotations

from functools import lru_cache
from importlib import resources
from typing import NamedTuple

import yaml
from ahocorasick_rs import AhoCorasick, MatchKind


class _Known(NamedTuple):
    phrases: tuple[str, ...]
    anywhere: AhoCorasick  # phrases first, then lines


def without_boilerplate(text: str) -> str:
    """Return ``text`` without what says nothing; an empty text where all of it says nothing."""
    known = _known()
    if not known.anywhere.find_matches_as_indexes(text):
        return text
    return "\n".join(filter(None, (_line(line, known) for line in text.split("\n"))))


def _line(line: str, known: _Known) -> str:
    found = {match[0] for match in known.anywhere.find_matches_as_indexes(line)}
    if any(number >= len(known.phrases) for number in found):
        return ""
    for number in found:
        line = line.replace(known.phrases[number], " ")
    return line


@lru_cache(maxsize=1)
def _known() -> _Known:
    file = resources.files("rayguard.faults") / "signatures" / "harmless.yaml"
    data = yaml.safe_load(file.read_text(encoding="utf-8"))
    longest_first = MatchKind.LeftmostLongest
    return _Known(
        tuple(data["phrases"]), AhoCorasick([*data["phrases"], *data["lines"]], matchkind=longest_first)
    )
