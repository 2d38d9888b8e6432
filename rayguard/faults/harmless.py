"""What is no evidence: boiler-plate in error texts, lines that healthy jobs print (``harmless.yaml``)."""

from __future__ import annotations

from functools import lru_cache
from importlib import resources
from typing import NamedTuple

import yaml
from ahocorasick_rs import AhoCorasick


class _Known(NamedTuple):
    phrases: tuple[str, ...]
    anywhere: AhoCorasick  # phrases first, then lines


def without_boilerplate(text: str) -> str:
    """Return ``text`` without what says nothing; an empty text where all of it says nothing."""
    known = _known()
    found = {match[0] for match in known.anywhere.find_matches_as_indexes(text)}
    if any(number >= len(known.phrases) for number in found):
        return ""
    for number in found:
        text = text.replace(known.phrases[number], " ")
    return text


@lru_cache(maxsize=1)
def _known() -> _Known:
    text = (
        resources.files("rayguard.faults")
        .joinpath("signatures")
        .joinpath("harmless.yaml")
        .read_text(encoding="utf-8")
    )
    data = yaml.safe_load(text)
    return _Known(tuple(data["phrases"]), AhoCorasick([*data["phrases"], *data["lines"]]))
