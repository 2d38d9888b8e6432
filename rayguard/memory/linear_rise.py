"""Is a course of memory a straight rise, and since when? What a leak is, and most that looks like one is not.

Pure. The longest stretch up to now is taken whose lows lie on one line (Theil-Sen over blocks of it, so that
neither a checkpoint nor a dip bends it), and then doubted: does it level off (a cache, warm-up), did it just
stop, is it one big jump, has as much come back before (a collector's sawtooth)? In doubt it is silent.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING

from rayguard.process.flight.growth import slope_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rayguard.memory.history import Bin

# All shares are of what was grown in the stretch. Tuned on seeds < 1000 of tests/benchmarks/memory/traces.py.
LEAST_RISES, LEAST_S = 4, 30.0  # a stretch: so many steps after the first, and so long
LEAST_LOOKS, LEAST_STEPLESS_S = 8, 300.0  # of something without steps: a model takes minutes to load, too
_BLOCKS = 10
_BENT = 0.18  # a block's distance from the line
_SCATTER = 0.4  # of three quarters of the lows around it
_JUMP = 0.35  # from one block to the next, or two blocks' worth where they are few
_TAIL = 0.2  # the last third must still rise with this share of the slope
_DOUBT = 0.03  # the second half's slope over the first's may be less than it seems by this
_FALL = 0.3  # a fall that says: memory comes back here

Point = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rise:
    """A stretch of straight growth. Seconds, steps and bytes; ``steps`` is 0 where nothing counts them."""

    since_step: float
    until: float
    seconds: float
    steps: float
    grown: float
    level: float  # at the end, without what comes and goes
    swing: float  # what comes and goes, again and again: the limit is met by the highest of it
    pace: float  # slope of the second half over that of the whole
    room: float  # bytes it would still grow if its slope went on changing as it does
    sure: float  # 0 to 1: how straight, and shown how often


def rise(bins: Sequence[Bin]) -> Rise | None:
    """Return the longest straight rise that ends now and that nothing speaks against."""
    if not bins:
        return None
    stepless = bins[-1].step < 0
    least, least_s = (LEAST_LOOKS, LEAST_STEPLESS_S) if stepless else (LEAST_RISES, LEAST_S)
    for count in _lengths(len(bins), least + 1):
        stretch = bins[-count:]
        if stretch[-1].at - stretch[0].at < least_s:
            return None
        line = _straight(stretch, stepless=stepless)
        if line is not None:
            doubted = line.levels_off or _came_back(bins, count, line.grown)
            return None if doubted else _rise(stretch, line)
    return None


def _lengths(whole: int, least: int) -> list[int]:
    """Return the lengths to try, longest first."""
    lengths, each = [], least
    while each < whole:
        lengths.append(each)
        each = max(each + 1, int(each * 1.25))
    return [whole, *reversed(lengths)] if whole >= least else []


class _Line:
    """A robust line through the lows of a stretch, over steps or over seconds."""

    __slots__ = ("bent", "blocks", "grown", "jump", "lows", "slope", "start", "xs")

    def __init__(self, xs: Sequence[float], lows: Sequence[float]) -> None:
        self.xs, self.lows = xs, lows
        self.blocks = list(_blocks(xs, lows))
        self.slope = slope_of(self.blocks)
        self.start = median([low - self.slope * x for x, low in self.blocks])
        self.grown = self.slope * (xs[-1] - xs[0])
        off = max(abs(low - self.at(x)) for x, low in self.blocks)
        jump = max(after[1] - before[1] for before, after in pairwise(self.blocks))
        self.bent, self.jump = (
            (off / self.grown, jump / self.grown) if self.grown > 0 else (math.inf, math.inf)
        )

    def at(self, x: float) -> float:
        """Return the line's height at ``x``."""
        return self.start + self.slope * x

    @property
    def is_straight(self) -> bool:
        """Say whether the lows lie on it, and no single jump made it."""
        if self.bent > _BENT or self.jump > max(_JUMP, 2 / (len(self.blocks) - 1)):
            return False
        off = sorted(abs(low - self.at(x)) for x, low in zip(self.xs, self.lows, strict=True))
        return off[int(0.75 * (len(off) - 1) + 0.5)] <= _SCATTER * self.grown

    @property
    def halves(self) -> Point:
        """Return the slopes of the first and of the second half."""
        half = (len(self.blocks) + 1) // 2
        return slope_of(self.blocks[:half]), slope_of(self.blocks[-half:])

    @property
    def levels_off(self) -> bool:
        """Say whether it has stopped."""
        tail = slope_of(self.blocks[-max(2, -(-len(self.blocks) // 3)) :])
        return self.halves[1] <= 0 or tail < _TAIL * self.slope

    @property
    def room(self) -> float:
        """Return bytes it would still grow along the parabola through both halves; inf where none slows."""
        first, second = self.halves
        ratio = max(0.0, (second / first if first > 0 else math.inf) - _DOUBT)
        if ratio > 1 - 1e-9:
            return math.inf
        early = 2 / (1 + ratio)  # slopes of the halves where that of the whole is 1
        slower = early - (2 - early)
        at_end = 2 - early - slower / 2
        return self.grown * at_end**2 / (4 * slower) if at_end > 0 else 0.0


def _straight(stretch: Sequence[Bin], *, stepless: bool) -> _Line | None:
    """Return the straighter one of the lines over steps and over seconds, if it is straight at all."""
    lows = [each.low for each in stretch]
    if lows[-1] <= lows[0]:
        return None
    axes = [[each.at for each in stretch]] + ([] if stepless else [[each.step for each in stretch]])
    line = min((_Line(xs, lows) for xs in axes if xs[-1] > xs[0]), key=lambda line: line.bent, default=None)
    return line if line is not None and line.is_straight else None


def _blocks(xs: Sequence[float], lows: Sequence[float]) -> list[Point]:
    """Return for each block of the stretch its middle and a low that neither a dip nor a peak makes."""
    count = len(xs)
    blocks = min(count, _BLOCKS)
    points = []
    for number in range(blocks):
        first, after = count * number // blocks, count * (number + 1) // blocks
        low = sorted(lows[first:after])[int((after - first - 1) / 3 + 0.5)]
        points.append((sum(xs[first:after]) / (after - first), low))
    return points


def _came_back(bins: Sequence[Bin], count: int, grown: float) -> bool:
    """Say whether as much was given back before, so that this may be given back too.

    Not if the line goes on through the last fall (an evaluation), if this rise has outlasted all others, or
    if it is larger than all that ever came back.
    """
    falls = _falls([each.low for each in bins], _FALL * grown)
    if not falls or falls[-1][0] >= len(bins) - 0.6 * count:
        return False
    ends = [bins[0].at, *(bins[place].at for place, _ in falls)]
    longest = max(after - before for before, after in pairwise(ends))
    often = 3.0 if len(falls) > 2 else 1.5  # noqa: PLR2004 - what falls thrice is in the habit of it
    outlasted = bins[-1].at - bins[falls[-1][0]].at >= often * longest
    return not outlasted and grown < 1.5 * max(size for _, size in falls)


def _falls(lows: Sequence[float], least: float) -> list[tuple[int, float]]:
    """Return where falls of at least ``least`` bytes ended, and how deep they were."""
    falls: list[tuple[int, float]] = []
    top, falling = lows[0], False
    for place, (before, low) in enumerate(pairwise(lows), 1):
        if falling and low <= before:
            falls[-1] = place, falls[-1][1] + before - low
            top = low
            continue
        falling = top - low >= least
        if falling:
            falls.append((place, top - low))
        top = low if falling else max(top, low)
    return falls


def _rise(stretch: Sequence[Bin], line: _Line) -> Rise:
    first, last, half = stretch[0], stretch[-1], len(stretch) // 2
    ends = (*line.xs[1:], 2 * line.xs[-1] - line.xs[-2])  # a wide bin is high at its end because it grew
    above = [each.high - line.at(x) for each, x in zip(stretch, ends, strict=True)]
    return Rise(
        since_step=first.step,
        until=last.at,
        seconds=last.at - first.at,
        steps=last.step - first.step,
        grown=line.grown,
        level=max(0.0, min(line.at(line.xs[-1]), max(last.low, line.blocks[-1][1]))),
        swing=max(0.0, min(max(above[:half]), max(above[half:]))),
        pace=line.halves[1] / line.slope,
        room=line.room,
        sure=(1 - 0.4 * line.bent / _BENT) * (1 - 1 / len(stretch)),
    )
