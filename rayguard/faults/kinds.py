"""What each kind of failure is, in words for a person: read from ``signatures/kinds.yaml``."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from importlib import resources

import yaml

from rayguard.faults.diagnosis import Kind


@dataclass(frozen=True, slots=True)
class KindText:
    """What a kind is, and what is done about it."""

    says: str
    do: str


@lru_cache(maxsize=1)
def kinds() -> dict[Kind, KindText]:
    """Return the text for each kind, in the order of the handbook."""
    text = (resources.files("rayguard.faults") / "signatures" / "kinds.yaml").read_text(encoding="utf-8")
    return {Kind(kind): KindText(entry["is"], entry["do"]) for kind, entry in yaml.safe_load(text).items()}
