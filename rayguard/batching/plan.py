"""How many rows each rank gets of a batch that need not divide by their number. Pure arithmetic.

Two ways. *Even*: every rank gets the same number of rows, in whole micro-batches, and what is missing are
pads (copies of rows that must not count). *Uneven*: no pads where there are rows enough, and ranks differ by
at most one row. In both, all ranks have the same number of micro-batches, each with at least one row: forward
and backward are collectives, and a rank that has nothing to do would keep the others waiting.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from rayguard.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Part:
    """One micro-batch: rows ``start`` to ``stop`` of the batch, then ``pads`` rows that must not count."""

    start: int
    stop: int
    pads: int = 0

    @property
    def rows(self) -> int:
        """How many rows go through the model."""
        return self.stop - self.start + self.pads


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """A batch of ``size`` rows over ``world`` ranks: ``ranks[r]`` are the micro-batches of rank r.

    Invariant: each row stands in exactly one part, in order; all ranks have equally many parts; no part is
    empty.
    """

    size: int
    world: int
    micro: int
    ranks: tuple[tuple[Part, ...], ...]

    @property
    def counts(self) -> tuple[int, ...]:
        """How many rows of the batch each rank gets, pads left out."""
        return tuple(sum(part.stop - part.start for part in parts) for parts in self.ranks)

    @property
    def pads(self) -> int:
        """How many rows are pads, over all ranks."""
        return sum(part.pads for parts in self.ranks for part in parts)


def plan(size: int, world: int, micro: int = 0, *, even: bool = True) -> BatchPlan:
    """Share ``size`` rows out over ``world`` ranks.

    Args:
        size: Rows of the batch, 0 or more.
        world: Ranks, 1 or more.
        micro: Rows of a micro-batch; 0: a rank's rows are one micro-batch.
        even: Whether every rank, and every micro-batch, gets the same number of rows, pads included. Else
            there are no pads, unless there are fewer rows than micro-batches.

    Raises:
        ConfigError: A number is none that makes sense.
    """
    for name, value, least in (("size", size, 0), ("world", world, 1), ("micro", micro, 0)):
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise ConfigError(f"{name} must be a whole number, {least} or more; got {value!r}")
    bounds = _cut(0, size, world)
    longest = max(1, bounds[0][1])  # the first ranks have one row more
    parts = -(-longest // micro) if micro else 1
    rows = (micro or longest) if even else 0
    ranks = tuple(
        tuple(
            Part(start, stop, _pads(stop - start, rows)) for start, stop in _parts(first, last, parts, rows)
        )
        for first, last in bounds
    )
    return BatchPlan(size, world, micro, ranks)


def nearest_sizes(size: int, world: int, micro: int = 1) -> tuple[int, int]:
    """Return the next sizes below and above that ``world`` ranks share in whole micro-batches.

    Both are ``size`` where it divides; the one below may be 0.

    Raises:
        ConfigError: A number is none that makes sense.
    """
    plan(size, world, micro)
    step = world * max(1, micro)
    return size // step * step, -(-size // step) * step


def largest_divisor(number: int, most: int) -> int:
    """Return the largest number up to ``most`` that divides ``number``."""
    return next(one for one in range(min(most, max(1, number)), 0, -1) if number % one == 0)


def _pads(real: int, rows: int) -> int:
    return max(rows, 1) - real if real < max(rows, 1) else 0


def _parts(first: int, last: int, count: int, rows: int) -> list[tuple[int, int]]:
    """Cut one rank's rows: full micro-batches and a rest where they are even, else as alike as can be."""
    if not rows:
        return _cut(first, last, count)
    starts = [min(first + number * rows, last) for number in range(count + 1)]
    return list(pairwise(starts))


def _cut(first: int, last: int, count: int) -> list[tuple[int, int]]:
    """Cut a range into pieces that differ by at most one, the longer ones first."""
    each, more = divmod(last - first, count)
    starts = [first + number * each + min(number, more) for number in range(count + 1)]
    return list(pairwise(starts))
