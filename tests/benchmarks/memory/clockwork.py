"""What all traces share: steps that vary, a watcher that looks now and then, and the noise of real processes."""

from __future__ import annotations

import json
import math
import random
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import fmean, median, pstdev

RECORDED = Path(__file__).parent / "noise" / "curves.json"
MOST_LOOKS = 600  # a trace has about as many points at most: the watcher looks less often in a long one
GB = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """What a watcher saw of one quantity, up to the moment it reached ``limit`` (where it did).

    ``began`` is the fraction of a step at which the leak began; ``phases`` has that of each point.
    """

    kind: str
    leaks: bool
    limit: int
    points: tuple[tuple[float, int, int], ...]  # at (seconds), the last step that had ended (or -1), bytes
    phases: tuple[float, ...]
    began: float = math.inf
    counted: bool = True  # False: nobody could tell at that moment; shown, not part of the ratio

    @property
    def died(self) -> bool:
        return self.points[-1][2] >= self.limit


@dataclass(frozen=True, slots=True)
class Clock:
    """When the watcher looked: seconds, and how many steps (with a fraction) had passed."""

    at: tuple[float, ...]
    phase: tuple[float, ...]

    @property
    def steps(self) -> float:
        return self.phase[-1]


def between(rng: random.Random, low: float, high: float) -> float:
    """Draw log-uniformly."""
    return math.exp(rng.uniform(math.log(low), math.log(high)))


def clock(rng: random.Random, steps: float, step_s: float) -> Clock:
    """Look at ``steps`` steps of about ``step_s`` each; in half of all traces also right after each step."""
    vary = rng.choice((0.0, 0.05, 0.15, 0.4))
    long_each = rng.choice((0, 0, 0, rng.randint(4, 25)))  # an evaluation or a checkpoint: a longer step
    ends = [0.0]
    for number in range(math.ceil(steps)):
        longer = rng.uniform(1.5, 4) if long_each and number % long_each == long_each - 1 else 1.0
        ends.append(ends[-1] + step_s * longer * rng.lognormvariate(0, vary))
    period = max(rng.uniform(0.5, 5.0), ends[-1] / MOST_LOOKS)
    looks = [period * rng.uniform(0.2, 1.0)]
    while looks[-1] < ends[-1]:
        looks.append(looks[-1] + period * rng.uniform(0.9, 1.1))
    if rng.random() < 0.5 and len(ends) <= MOST_LOOKS:
        looks = sorted([*looks, *(end + 1e-3 for end in ends[1:])])
    phases, number = [], 0
    for look in looks:
        while number + 2 < len(ends) and ends[number + 1] <= look:
            number += 1
        phases.append(number + min(1.0, (look - ends[number]) / (ends[number + 1] - ends[number])))
    return Clock(tuple(looks), tuple(phases))


@cache
def recorded() -> dict[str, list[int]]:
    """Real curves, in KB."""
    return json.loads(RECORDED.read_text(encoding="ascii"))


@cache
def residuals(name: str) -> tuple[float, ...]:
    """Return what a real curve has beside its slow course: mean 0, deviation 1.

    Cut at four deviations: what is beyond is where the slow course itself bends, and would be less than 0 bytes.
    """
    curve = recorded()[name][20:]
    wide = 15
    rest = [kb - median(curve[max(0, at - wide) : at + wide + 1]) for at, kb in enumerate(curve)]
    middle, spread = fmean(rest), pstdev(rest)
    return tuple(max(-4.0, min(4.0, (each - middle) / (spread or 1.0))) for each in rest)


def noise(rng: random.Random, count: int) -> list[float]:
    """Return ``count`` values of real noise, of deviation about 1: stretched in time, begun anywhere."""
    real = residuals(rng.choice(sorted(recorded())))
    start, speed = rng.uniform(0, len(real)), between(rng, 0.2, 2.0)
    shared, last = (
        rng.choice((0.0, 0.0, 0.5, 0.9)),
        0.0,
    )  # slow wandering that comes back, as of a shared node
    out = []
    for number in range(count):
        last = last * 0.97 + rng.gauss(0, 0.24)
        out.append((1 - shared) * real[int(start + number * speed) % len(real)] + shared * last)
    return out


def step_seconds(rng: random.Random) -> float:
    return between(rng, 0.2, 600.0)


def looked_at(clock: Clock, used: list[int], limit: int) -> tuple[tuple[float, int, int], ...]:
    """Return the points up to the first that reaches the limit."""
    points = []
    for at, phase, each in zip(clock.at, clock.phase, used, strict=True):
        points.append((at, math.floor(phase) - 1, max(0, each)))
        if each >= limit:
            break
    return tuple(points)
