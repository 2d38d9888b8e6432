"""What an engine was built with, as far as an heir must build its client with the same."""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rayguard.engine.settings import EngineSettings

ADOPTABLE_ENV = "RAYGUARD_ADOPTABLE"  # tells an engine's processes that they may outlive their owner
_AN_OBJECT = re.compile(r" at 0x[0-9a-f]+>")  # what another process writes otherwise


def digest_of(settings: EngineSettings) -> str:
    """Return a digest of the arguments that a recipe got; '' where another process tells them otherwise."""
    if settings.given is None:
        return ""
    text = repr(sorted(settings.given.items()))
    return "" if _AN_OBJECT.search(text) else hashlib.sha256(text.encode()).hexdigest()
