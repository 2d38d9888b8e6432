"""A course of memory in a few kilobytes: lows and highs, fine for what is recent, coarse for the old.

Pure. The low of a step is what the step did not give back; garbage that a collector takes later is told from
a leak by the lows that come after (``linear_rise``). Kept in levels of bins, each level twice as wide as the
one before it; a level that is full gives its two oldest bins, joined, to the next.
"""

from __future__ import annotations

import math
from array import array
from dataclasses import dataclass

BINS = 16  # of a level: with LEVELS, the last 4,000 steps or looks of a thing
LEVELS = 8
_MOST_BYTES = 2.0**60  # more is no memory; squares of it are still numbers
_FIELDS = 4  # at, step, low, high


@dataclass(frozen=True, slots=True)
class Bin:
    """The lowest and highest bytes from ``at`` (seconds) and ``step`` on, until the next bin begins."""

    at: float
    step: float
    low: float
    high: float


class Lows:
    """The course of one quantity, 4 KB at most. ``add`` costs a microsecond, and nothing makes it raise."""

    __slots__ = ("_levels", "at", "count", "step", "used")

    def __init__(self) -> None:
        self.count = 0  # bins there ever were
        self.forget()

    def forget(self) -> None:
        """Begin anew: what was, says nothing about what comes."""
        self._levels = [array("d") for _ in range(LEVELS)]
        self.at = -math.inf
        self.step = -1
        self.used = 0.0

    def add(self, at: float, step: int, used: float) -> None:
        """Take one look. Looks without a finite number or out of order are left out.

        A counter of steps that goes back is another life of the process, and all before the end of the first
        step is warm-up: both are forgotten.
        """
        if not (0 <= used < _MOST_BYTES and math.isfinite(at)) or at < self.at:
            return
        if step < self.step or self.step < 0 <= step:
            self.forget()
        newest = self._levels[0]
        same = len(newest) > 0 and step == self.step and (step >= 0 or at <= self.at)
        self.at, self.step, self.used = at, step, used
        if not same:
            newest.extend((at, step, used, used))
            self.count += 1
            if len(newest) > BINS * _FIELDS:
                self._join()
        elif used < newest[-2]:
            newest[-2] = used
        elif used > newest[-1]:
            newest[-1] = used

    def _join(self) -> None:
        """Make room: the two oldest bins of a full level become one of the next; the last one forgets."""
        for level, wider in zip(self._levels, (*self._levels[1:], None), strict=True):
            if len(level) <= BINS * _FIELDS:
                return
            at, step, low, high, _, _, low2, high2 = level[: 2 * _FIELDS]
            del level[: 2 * _FIELDS]
            if wider is not None:
                wider.extend((at, step, min(low, low2), max(high, high2)))

    def bins(self) -> list[Bin]:
        """Return the course, oldest first."""
        flat = [each for level in reversed(self._levels) for each in level]
        return [Bin(*flat[k : k + _FIELDS]) for k in range(0, len(flat), _FIELDS)]
