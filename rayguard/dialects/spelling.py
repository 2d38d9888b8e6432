"""Settings by plain names, for one framework: what it has a word for, and what is refused, and why."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from rayguard.dialects.job_settings import checked
from rayguard.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

KEPT = 3  # checkpoints, where they are switched on and nobody said how many: a disk is full soon
ON_RAY = "it is started by Ray, an actor for each GPU, and needs no other launcher"


def sort_out(
    settings: Mapping[str, object], names: Mapping[str, str], why_not: Callable[[str, object], str]
) -> tuple[dict[str, object], dict[str, str]]:
    """Return what to write, by the framework's own names, and what is refused, by the plain ones.

    Args:
        settings: By their plain names.
        names: The framework's own of each setting that it has.
        why_not: Says why a setting cannot be written; '' where it can.

    Raises:
        ConfigError: There is no such setting, or its value is none for it.
    """
    written: dict[str, object] = {}
    refused: dict[str, str] = {}
    for name, value in checked(settings, names).items():
        if value is None:
            raise ConfigError(f"{names.get(name, name)} must have a value to be written; got None")
        reason = why_not(name, value)
        if reason:
            refused[name] = reason
        elif name in names:
            written[names[name]] = value
    return written, refused


def steps(every: int) -> int:
    """Return how many steps are between two checkpoints.

    Raises:
        ConfigError: It is no number of steps.
    """
    if isinstance(every, bool) or not isinstance(every, int) or every < 1:
        raise ConfigError(f"checkpoints need a whole number of steps between them, 1 or more; got {every!r}")
    return every


def text_of(value: object) -> str:
    """Return a value as command lines have it: true, false and null in small letters."""
    return json.dumps(value) if value is None or isinstance(value, bool) else str(value)


def positive(value: object) -> bool:
    """Say whether a value is a number of steps: -1 and 0 are none."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0
