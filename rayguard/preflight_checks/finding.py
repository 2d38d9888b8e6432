"""What a check found: a level, what is wrong with its numbers, and the corrected setting."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


class Level(str, Enum):
    """How bad it is. Only an error makes `rayguard preflight` end with 1."""

    ERROR = "error"  # the job fails of it
    WARNING = "warning"  # it may, or trains otherwise than meant
    NOTE = "note"  # what could not be checked, and what would let it be


@dataclass(frozen=True, slots=True, kw_only=True)
class PreflightFinding:
    """One thing that a check has to say.

    ``settings`` are corrected ones by their names in ``JobSettings``; ``write`` the same as the job's
    framework spells them. ``id`` stays the same over versions.
    """

    id: str
    level: Level
    message: str
    settings: Mapping[str, object] = field(default_factory=dict)
    write: str = ""


def error(name: str, message: str, **settings: object) -> PreflightFinding:
    """Return what the job fails of."""
    return PreflightFinding(id=name, level=Level.ERROR, message=message, settings=settings)


def warning(name: str, message: str, **settings: object) -> PreflightFinding:
    """Return what may go wrong."""
    return PreflightFinding(id=name, level=Level.WARNING, message=message, settings=settings)


def note(name: str, message: str) -> PreflightFinding:
    """Return what could not be checked."""
    return PreflightFinding(id=name, level=Level.NOTE, message=message)
