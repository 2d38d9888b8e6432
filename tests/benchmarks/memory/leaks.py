"""Traces that end at the limit. One function for each way to get there.

Each gives, for each look, how much of the way from the base to the limit is gone (1 is death), as the leak
alone would have it; noise, swings within steps and other work are laid over it.
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

SOONEST_S = 90.0
SLACK = 1.6  # a trace goes on for this much longer than the leak alone would need
Course = tuple[list[float], float]  # the way gone at each look, and the phase at which it began


def _stairs(phases: tuple[float, ...], inside: float) -> list[float]:
    """Steps done: each counts smoothly in its last ``inside`` part, as memory that a phase of it fills."""
    return [math.floor(phase) + max(0.0, (phase % 1 - 1 + inside) / inside) for phase in phases]


def linear(rng: random.Random, seen: Clock, need: float) -> Course:
    inside = rng.choice((0.02, 0.3, 1.0))
    vary = rng.uniform(0, 0.6)
    grown = [0.0]
    for _ in range(math.ceil(seen.steps) + 1):
        grown.append(grown[-1] + max(0.0, rng.gauss(1, vary)))
    done = _stairs(seen.phase, inside)
    return [(grown[int(d)] + (grown[int(d) + 1] - grown[int(d)]) * (d % 1)) / need for d in done], 0.0


def late(rng: random.Random, seen: Clock, need: float) -> Course:
    began = seen.steps - need * SLACK
    return [max(0.0, done - began) / need for done in _stairs(seen.phase, rng.choice((0.05, 1.0)))], began


def every_kth(rng: random.Random, seen: Clock, need: float) -> Course:
    each = rng.randint(2, max(2, min(10, int(need / 7))))
    return [math.floor(phase / each) * each / need for phase in seen.phase], 0.0


def accelerating(rng: random.Random, seen: Clock, need: float) -> Course:
    power = rng.uniform(1.2, 2.2)
    return [(done / need) ** power for done in _stairs(seen.phase, 1.0)], 0.0


def bursts(rng: random.Random, seen: Clock, need: float) -> Course:
    """Some steps leak, most do not, and not equally much."""
    often = max(rng.uniform(0.15, 0.7), min(1.0, 12 / need))
    grown = [0.0]
    for _ in range(math.ceil(seen.steps) + 1):
        grown.append(grown[-1] + (rng.lognormvariate(0, 0.5) / often if rng.random() < often else 0.0))
    return [grown[int(phase)] / need / 1.13 for phase in seen.phase], 0.0


def pauses(rng: random.Random, seen: Clock, need: float) -> Course:
    """Leaks for a while, rests for a while."""
    on, off = rng.uniform(0.15, 0.5) * need, rng.uniform(0.05, 0.3) * need
    turns = [0.0]
    while turns[-1] < seen.steps:
        turns += [turns[-1] + on * rng.uniform(0.7, 1.3), 0.0]
        turns[-1] = turns[-2] + off * rng.uniform(0.7, 1.3)

    def leaked(phase: float) -> float:
        whole = bisect.bisect_right(turns, phase) - 1
        past = sum(turns[k + 1] - turns[k] for k in range(0, whole, 2))
        return past + (phase - turns[whole] if whole % 2 == 0 else 0.0)

    return [leaked(done) / need for done in _stairs(seen.phase, 1.0)], 0.0


def _plain(_rng: random.Random, seen: Clock, _part: float) -> list[float]:
    return [0.0 for _ in seen.phase]


def _warmed(rng: random.Random, seen: Clock, part: float) -> list[float]:
    """The first steps take what they need for good."""
    tau, high = rng.uniform(0.3, 1.5), part * rng.uniform(0.5, 3)
    return [-high * math.exp(-phase / tau) for phase in seen.phase]


def _sawtooth(rng: random.Random, seen: Clock, part: float) -> list[float]:
    period, high = between(rng, 0.3, max(0.5, min(8.0, seen.steps / SLACK / 6))), part
    return [high * (phase / period % 1) for phase in seen.phase]


def _within(rng: random.Random, seen: Clock, part: float) -> list[float]:
    """Activations: up within each step, gone at its end."""
    shape = rng.uniform(0.3, 3)
    return [part * (phase % 1) ** shape for phase in seen.phase]


def _lengths(rng: random.Random, seen: Clock, part: float) -> list[float]:
    """What a step needs depends on the length of its sequences."""
    needs = [min(3.0, rng.lognormvariate(-0.5, 0.6)) for _ in range(math.ceil(seen.steps) + 2)]
    return [part / 3 * needs[int(phase)] * (phase % 1) for phase in seen.phase]


def _evaluations(rng: random.Random, seen: Clock, part: float) -> list[float]:
    each = rng.randint(3, 20)
    return [part if int(phase) % each == each - 1 else 0.0 for phase in seen.phase]


def _one_jump(rng: random.Random, seen: Clock, part: float) -> list[float]:
    at, back = rng.uniform(0, seen.steps / SLACK / 2), rng.choice((1, 2, math.inf))
    return [part if at <= phase < at + back else 0.0 for phase in seen.phase]


def _others(rng: random.Random, seen: Clock, part: float) -> list[float]:
    """Other processes of the node come and go."""
    turns = sorted(rng.uniform(0, seen.steps) for _ in range(rng.randint(2, 8)))
    return [part if bisect.bisect(turns, phase) % 2 else 0.0 for phase in seen.phase]


Leak = Callable[[random.Random, Clock, float], Course]
Over = Callable[[random.Random, Clock, float], list[float]]
KINDS: dict[str, tuple[Leak, Over, tuple[float, float]]] = {
    "leak": (linear, _plain, (12, 400)),
    "leak, dies soon": (linear, _plain, (6.5, 12)),
    "leak after warm-up": (linear, _warmed, (9, 300)),
    "leak begins late": (late, _plain, (8, 200)),
    "leak every k-th step": (every_kth, _plain, (14, 400)),
    "leak gets faster": (accelerating, _plain, (12, 300)),
    "leak in bursts": (bursts, _plain, (16, 400)),
    "leak that pauses": (pauses, _plain, (20, 400)),
    "leak under sawtooth GC": (linear, _sawtooth, (12, 400)),
    "leak under activations": (linear, _within, (10, 400)),
    "leak, lengths vary": (linear, _lengths, (10, 400)),
    "leak with evaluations": (linear, _evaluations, (12, 300)),
    "leak and one jump": (linear, _one_jump, (12, 300)),
    "leak on a shared node": (linear, _others, (16, 400)),
}
STEPLESS = "leak without steps"
REAL = ("leak_rows", "leak_views", "leak_cycles", "leak_buffers", "leak_big_cache")
NAMES = (*KINDS, STEPLESS, *REAL)


def _sized(rng: random.Random, need: float) -> tuple[float, float, float]:
    """Return bytes from base to limit, the limit, and seconds a step.

    Nothing leaks more than 1 GB a second, and what fills everything within 90 s is no creeping leak.
    """
    while True:
        each, share, step_s = between(rng, 1e6, 2 * GB), rng.uniform(0.05, 0.85), step_seconds(rng)
        rise = each * need
        if GB / 2 < rise / (1 - share) < 2048 * GB and each / step_s < GB and need * step_s > SOONEST_S:
            return rise, rise / (1 - share), step_s


def leak(kind: str, seed: int) -> Trace:
    """Make one trace: the same for the same seed."""
    rng = random.Random(f"{kind} {seed}")
    if kind in REAL:
        return _real(kind, rng)
    make, over, steps = KINDS.get(kind, (linear, _plain, (12, 400)))
    need = between(rng, *steps)
    rise, limit, step_s = _sized(rng, need)
    if kind == STEPLESS:  # a thing that is not called in steps and leaks over hours
        step_s = max(step_s, 1800 / need)
    longer = {late: rng.uniform(0.3, 2.5), pauses: 2.0}.get(make, 0.0)
    seen = clock(rng, need * (SLACK + longer) + 2, step_s)
    gone, began = make(rng, seen, need)
    laid_over = over(rng, seen, rng.uniform(0.02, 0.3))
    spread = between(rng, 0.001, 0.05)
    noisy = noise(rng, len(gone))
    used = [
        int(limit - rise * (1 - way - other - spread * each))
        for way, other, each in zip(gone, laid_over, noisy, strict=True)
    ]
    points = looked_at(seen, used, int(limit))
    if kind == STEPLESS:
        points = tuple((at, -1, each) for at, _, each in points)
    return Trace(kind=kind, leaks=True, limit=int(limit), points=points, phases=seen.phase, began=began)


def _real(kind: str, rng: random.Random) -> Trace:
    """A recorded leak, in another size and at another speed, with the limit somewhere on its way."""
    curve = recorded()[kind]
    reach = curve[0] + rng.uniform(0.6, 0.98) * (max(curve) - curve[0])  # before, much of it is warm-up
    size, looks = between(rng, 100, 100_000), rng.randint(1, 6)
    step_s = max(step_seconds(rng), 2 * SOONEST_S * looks / len(curve))
    rest = rng.uniform(0, 2 * curve[0])  # what else there is on that node
    phases = tuple((number + 1) / looks for number in range(len(curve)))
    seen = Clock(tuple(phase * step_s for phase in phases), phases)
    points = looked_at(seen, [int((kb + rest) * size) for kb in curve], int((reach + rest) * size))
    return Trace(
        kind=kind, leaks=True, limit=int((reach + rest) * size), points=points, phases=phases, began=0.0
    )
