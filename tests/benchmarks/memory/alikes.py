"""Traces that look like leaks and are none: they never reach the limit, however long they go on.

Each function gives, for each look, what share of ``top`` is used beyond the base; how near to the limit the top
lies is drawn once for all of them, up to 97 %.
"""

from __future__ import annotations

import bisect
import math
import random
from collections.abc import Callable

from tests.benchmarks.memory.clockwork import (
    GB,
    Clock,
    Trace,
    between,
    clock,
    looked_at,
    noise,
    recorded,
    step_seconds,
)

Course = list[float]


def warm_up(rng: random.Random, seen: Clock) -> Course:
    """The first steps take ever less."""
    tau = rng.uniform(0.4, 3)
    return [1 - math.exp(-phase / tau) for phase in seen.phase]


def loading(rng: random.Random, seen: Clock) -> Course:
    """A straight load until some time in the first or second step, then flat: a model, a data set."""
    until = rng.uniform(0.2, 2.0)
    return [min(1.0, phase / until) for phase in seen.phase]


def cache_log(rng: random.Random, seen: Clock) -> Course:
    """A cache whose misses get rarer: logarithmic, and never quite full."""
    tau = between(rng, 0.5, 20)
    whole = math.log1p(seen.steps / tau)
    return [math.log1p(phase / tau) / whole * 0.9 for phase in seen.phase]


def cache_fills(rng: random.Random, seen: Clock) -> Course:
    """A cache of bounded size: saturates."""
    tau = seen.steps * rng.uniform(0.03, 0.3)
    return [1 - math.exp(-phase / tau) for phase in seen.phase]


def straight_fill(rng: random.Random, seen: Clock) -> Course:
    """A buffer that fills as straight as a leak (replay, prefetch), then is full."""
    until = seen.steps * rng.uniform(0.1, 0.8)
    return [min(1.0, phase / until) for phase in seen.phase]


def shards(rng: random.Random, seen: Clock) -> Course:
    """Some equal stairs, each a shard that is loaded once; then no more."""
    count, each = rng.randint(2, 8), rng.uniform(1, max(1.5, seen.steps / 20))
    return [min(count, math.floor(phase / each)) / count for phase in seen.phase]


def garbage(rng: random.Random, seen: Clock) -> Course:
    """A sawtooth: cycles pile up until the collector comes, sometimes late."""
    period, vary = between(rng, 0.2, 12), rng.choice((0.0, 0.1, 0.3))
    turns = [0.0]
    while turns[-1] <= seen.steps:
        turns.append(turns[-1] + period * min(1.5, rng.lognormvariate(0, vary)))
    out = []
    for phase in seen.phase:
        tooth = bisect.bisect_right(turns, phase) - 1
        out.append((phase - turns[tooth]) / period / 1.5)
    return out


def generations(rng: random.Random, seen: Clock) -> Course:
    """Small collections leave something behind, a big one takes all of it."""
    minor, each, left = rng.uniform(0.3, 2), rng.randint(3, 6), rng.uniform(0.1, 0.5)
    whole = 1 + left * (each - 1)
    return [((phase / minor % 1) + left * (int(phase / minor) % each)) / whole for phase in seen.phase]


def jumps(rng: random.Random, seen: Clock) -> Course:
    """Things that come once: a checkpoint, a reference model, a second data set."""
    at = sorted(rng.uniform(0, seen.steps) for _ in range(rng.randint(1, 5)))
    high = [rng.uniform(0.2, 1) for _ in at]
    stays = [rng.choice((1.0, rng.uniform(0, 1), 0.0)) for _ in at]
    out = []
    for phase in seen.phase:
        past = bisect.bisect(at, phase)
        kept = sum(each * keep for each, keep in zip(high[:past], stays, strict=False))
        now = high[past - 1] * (1 - stays[past - 1]) if past and phase - at[past - 1] < 1 else 0.0
        out.append((kept + now) / sum(high))
    return out


def evaluations(rng: random.Random, seen: Clock) -> Course:
    """Every k-th step takes more; the first one keeps some of it."""
    each, kept = rng.randint(3, 20), rng.uniform(0, 0.5)
    return [1.0 if int(phase) % each == each - 1 else kept * min(1.0, phase // each) for phase in seen.phase]


def lengths(rng: random.Random, seen: Clock) -> Course:
    """A curriculum: memory follows the sequence length, up over many steps and back."""
    period, shape = seen.steps / rng.uniform(1.2, 6), rng.uniform(0.6, 1.4)
    low = rng.uniform(0.5, 0.9)  # the longest sequences come late in a period
    return [
        (min(1.0, (phase / period % 1) / low)) ** shape * (0.3 + 0.7 * (phase % 1)) for phase in seen.phase
    ]


def records(rng: random.Random, seen: Clock) -> Course:
    """An allocator that keeps the most it ever needed, while needs vary: rises with each record."""
    spread, most, out, number = rng.uniform(0.1, 0.5), 0.0, [], -1
    for phase in seen.phase:
        while number < int(phase):
            most, number = max(most, rng.gauss(0, spread)), number + 1
        out.append(min(1.0, 0.4 + most / spread / 6))
    return out


def fragmentation(rng: random.Random, seen: Clock) -> Course:
    """Creeps up in random bits, ever smaller ones."""
    tau, level, last, out = seen.steps * rng.uniform(0.03, 0.25), 0.0, 0.0, []
    for phase in seen.phase:
        level += (0.97 - level) * (phase - last) / tau * rng.expovariate(1)
        level, last = min(level, 0.97), phase
        out.append(level)
    return out


def drift(rng: random.Random, seen: Clock) -> Course:
    """Grows straight and slowly, far below the limit: for hundreds of hours more."""
    far = rng.uniform(0.03, 0.3)
    return [far * phase / seen.steps for phase in seen.phase]


def neighbours(rng: random.Random, seen: Clock) -> Course:
    """Other processes of the node: they load, stay, leave."""
    rows = []
    for _ in range(rng.randint(2, 7)):
        start, ramp = rng.uniform(-0.3, 1) * seen.at[-1], between(rng, 1, 120)
        rows.append((start, ramp, start + rng.uniform(0.05, 0.8) * seen.at[-1], rng.uniform(0.1, 1)))
    whole = sum(high for *_, high in rows)
    return [
        sum(high * min(1.0, max(0.0, (at - start) / ramp)) for start, ramp, end, high in rows if at < end)
        / whole
        for at in seen.at
    ]


def wandering(rng: random.Random, seen: Clock) -> Course:
    """A random walk between two walls."""
    level, size, out = rng.random(), between(rng, 0.003, 0.05), []
    for _ in seen.at:
        level = abs(level + rng.gauss(0, size))
        level = 2 - level if level > 1 else level
        out.append(level)
    return out


def recycled(rng: random.Random, seen: Clock) -> Course:
    """A leak that is recycled in time, again and again; the counter of steps begins anew."""
    life = rng.uniform(4, max(5, seen.steps / 2))
    return [0.55 * (phase % life) / life for phase in seen.phase]


def epochs(rng: random.Random, seen: Clock) -> Course:
    """What an epoch collects goes at its end (metrics, prefetched rows)."""
    length = rng.randint(8, 40)
    return [(phase % length) / length * 0.6 for phase in seen.phase]


def steady(_rng: random.Random, seen: Clock) -> Course:
    """Flat, near the limit, under a real process's noise."""
    return [0.8 for _ in seen.at]


KINDS: dict[str, Callable[[random.Random, Clock], Course]] = {
    "warm-up": warm_up,
    "loading": loading,
    "logarithmic cache": cache_log,
    "cache that fills": cache_fills,
    "straight fill": straight_fill,
    "shards loaded once": shards,
    "sawtooth GC": garbage,
    "generational GC": generations,
    "one-off jumps": jumps,
    "evaluations": evaluations,
    "lengths come and go": lengths,
    "allocator keeps its record": records,
    "fragmentation": fragmentation,
    "slow drift": drift,
    "neighbours on the node": neighbours,
    "wandering": wandering,
    "recycled in time": recycled,
    "epochs": epochs,
    "steady": steady,
}
STRAIGHT = (
    0.3,
    0.7,
)  # what fills straight and stops nearer to the limit than that cannot be told from a leak
TOPS = {
    "straight fill": STRAIGHT,
    "shards loaded once": STRAIGHT,
    "lazy_garbage": STRAIGHT,
    "objects": STRAIGHT,
}
NEAR = (0.7, 0.97)
UNDECIDABLE = tuple(f"{kind}, near" for kind in TOPS)
REAL = ("arrays", "objects", "files", "fragments", "lazy_garbage", "full_cache", "node")
STEPLESS = (
    "cache that fills",
    "sawtooth GC",
    "neighbours on the node",
    "wandering",
    "steady",
    "one-off jumps",
)
NAMES = (*KINDS, *(f"{kind}, no steps" for kind in STEPLESS), *REAL)


def alike(kind: str, seed: int) -> Trace:
    """Make one trace: the same for the same seed. ``KIND, near`` is one that ends beyond what can be told."""
    rng = random.Random(f"{kind} {seed}")
    name = kind.removesuffix(", no steps").removesuffix(", near")
    top = rng.uniform(*(NEAR if kind in UNDECIDABLE else TOPS.get(name, (0.3, 0.97))))
    make = _real if name in REAL else _made
    seen, used, limit = make(rng, name, top)
    points = looked_at(seen, used, limit)
    if name == "recycled in time":
        points = _counted_anew(points)
    if kind.endswith(", no steps"):
        points = tuple((at, -1, each) for at, _, each in points)
    counted = kind not in UNDECIDABLE
    return Trace(kind=kind, leaks=False, limit=limit, points=points, phases=seen.phase, counted=counted)


def _made(rng: random.Random, name: str, top: float) -> tuple[Clock, list[int], int]:
    """One of ``KINDS`` under real noise; the noise itself never reaches the limit."""
    limit, base = between(rng, GB / 2, 2048 * GB), top * rng.uniform(0.05, 0.9)
    seen = clock(rng, between(rng, 15, 500), step_seconds(rng))
    shares, spread = KINDS[name](rng, seen), between(rng, 0.001, 0.04) * (top - base)
    noisy = noise(rng, len(shares))
    used = [base + (top - base) * share + spread * each for share, each in zip(shares, noisy, strict=True)]
    worst = max(0.0, max(used) - max(top, 0.985))
    return seen, [int(limit * (each - worst)) for each in used], int(limit)


def _real(rng: random.Random, name: str, top: float) -> tuple[Clock, list[int], int]:
    """A recorded curve, in another size and at another speed, with a limit that it did not reach."""
    curve = recorded()[name]
    size, step_s, looks = between(rng, 100, 100_000), step_seconds(rng), rng.randint(1, 6)
    rest = rng.uniform(-0.5 * min(curve), 2 * curve[0])
    phases = tuple((number + 1) / looks for number in range(len(curve)))
    seen = Clock(tuple(phase * step_s for phase in phases), phases)
    return seen, [int((kb + rest) * size) for kb in curve], int((max(curve) + rest) / top * size)


def _counted_anew(points: tuple[tuple[float, int, int], ...]) -> tuple[tuple[float, int, int], ...]:
    """The new process counts its steps from 0: a fall of memory by a third of its range begins a new count."""
    low, high = min(used for *_, used in points), max(used for *_, used in points)
    out, first, last = [], 0, points[0][2]
    for at, step, used in points:
        first = step if last - used > (high - low) / 3 else first
        out.append((at, step - first, used))
        last = used
    return tuple(out)
