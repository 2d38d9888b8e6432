"""Whether memory grew from round to round, how fast, and since when. Pure; a round is a step, or a call.

For a sentence about the dead. Whether the living will run out of memory is ``rayguard.memory.forecast``.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

LEAST_ROUNDS = 4
LEAST_BYTES = 16 << 20  # of growth in all: less ends nobody
LEAST_RATIO = 0.02  # of what there is at the end
RISING = 0.8  # of all pairs of rounds in which the later one has more: noise has 0.5, a plateau less
_POINTS = 32  # that are looked at: more say no more, and there are pairs of them to compare

Point = tuple[int, int]  # number of the round, bytes


@dataclass(frozen=True, slots=True)
class RecordedGrowth:
    """``bytes_a_round`` from round ``since`` on, the first that has more; ``total_bytes`` until ``until``."""

    bytes_a_round: float
    since: int
    until: int
    total_bytes: int


def growth(points: Sequence[Point]) -> RecordedGrowth | None:
    """Return the growth that lasts to the end of ``points`` (in order), or None.

    Theil and Sen's median slope of what follows the best place for a bend: before it memory was level (or
    still warming up), from it on it grows. A load that is done, a cache that has filled and garbage that is
    collected now and then are no growth.
    """
    thin = _thinned(points)
    if len(thin) < LEAST_ROUNDS:
        return None
    bend = min(range(len(thin) - LEAST_ROUNDS + 1), key=lambda at: (_misfit(thin, at), at))
    tail = thin[bend:]
    slope = slope_of(tail)
    total = round(slope * (tail[-1][0] - tail[0][0]))
    if total < max(LEAST_BYTES, LEAST_RATIO * thin[-1][1]) or _rising(tail) < RISING:
        return None
    if bend and thin[-1][1] < max(used for _, used in thin[:bend]) + total / 2:
        return None  # it was there before: the last tooth of a saw
    return RecordedGrowth(
        bytes_a_round=slope, since=_first(thin, bend, slope), until=tail[-1][0], total_bytes=total
    )


def _thinned(points: Sequence[Point]) -> list[Point]:
    """Return at most ``_POINTS``: the least memory of each stretch, which is what a collection leaves."""
    ordered = sorted(dict(points).items())
    width = -(-len(ordered) // _POINTS) or 1
    stretches = (ordered[at : at + width] for at in range(0, len(ordered), width))
    return [min(stretch, key=lambda point: point[1]) for stretch in stretches]


def _misfit(points: list[Point], bend: int) -> float:
    """Return how far the points are from a level up to ``bend`` and a line from it on."""
    head, tail = points[:bend], points[bend:]
    level = median(used for _, used in head) if head else 0.0
    slope = slope_of(tail)
    start = median(used - slope * number for number, used in tail)
    off = sum(abs(used - level) for _, used in head)
    return off + sum(abs(used - start - slope * number) for number, used in tail)


def _first(points: list[Point], bend: int, slope: float) -> int:
    """Return the first round that has more than the level before it; the first of all without a level."""
    level: float = points[bend][1]
    before = median(used for _, used in points[:bend]) if bend else level
    if abs(level - before) <= 2 * slope:  # else it is a jump, as of a load, and no level of this growth
        level = before
    grown = next((at for at in range(bend, len(points)) if points[at][1] > level + slope / 2), bend)
    return points[0 if not bend and grown == 1 else grown][0]


def slope_of(points: Sequence[tuple[float, float]]) -> float:
    """Return the median slope between any two (Theil-Sen); 0 where there is none."""
    pairs = ((before, after) for at, before in enumerate(points) for after in points[at + 1 :])
    slopes = [(y - b) / (x - a) for (a, b), (x, y) in pairs if x > a]
    return median(slopes) if slopes else 0.0


def _rising(points: list[Point]) -> float:
    pairs = [(b, y) for at, (_, b) in enumerate(points) for _, y in points[at + 1 :]]
    return sum(y > b for b, y in pairs) / len(pairs)
