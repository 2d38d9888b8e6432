"""Leaks and what looks like one, by seed: made before the forecaster was tuned, and kept apart by seed.

Seeds below 1000 are for tuning; what is reported is from seeds that nobody looked at (``HELD_OUT`` on).
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.benchmarks.memory import alikes, leaks
from tests.benchmarks.memory.clockwork import Trace

HELD_OUT = 1000


def all_kinds() -> tuple[str, ...]:
    return (*leaks.NAMES, *alikes.NAMES, *alikes.UNDECIDABLE)


def trace(kind: str, seed: int) -> Trace:
    """Return the trace of one kind and seed."""
    return leaks.leak(kind, seed) if kind in leaks.NAMES else alikes.alike(kind, seed)


def traces(leaking: int, alike: int, seed: int) -> Iterator[Trace]:
    """Yield about that many of both, as evenly over the kinds as can be, from ``seed`` on; each seed once."""
    for names, count in ((leaks.NAMES, leaking), ((*alikes.NAMES, *alikes.UNDECIDABLE), alike)):
        each = -(-count // len(names))
        for name in names:
            for number in range(each):
                yield trace(name, seed + number)
