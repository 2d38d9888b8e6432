"""Curves of runs, healthy and not, made of a seed; ``python -m tests.trainers.training_curves 1000`` counts false alarms."""

from __future__ import annotations

import math
import random
import sys
from collections import Counter

from rayguard.trainers.training_alarms import TrainingAlarms

STEPS = 400
SHAPES = ("level", "learning", "warm-up", "saturating", "drifting", "heavy-tailed", "wandering", "epochs")


def healthy(shape, seed, steps=STEPS):
    """Yield the numbers of each step of a run that goes well."""
    rng = random.Random(f"{shape}-{seed}")
    size = rng.choice([0.05, 1.0, 30.0])  # nobody promises rewards from 0 to 1
    start, gain = rng.uniform(-0.5, 0.5) * size, rng.uniform(0.2, 1.0) * size
    noise, pace = rng.uniform(0.005, 0.08) * size, rng.uniform(60, 200)
    kl, entropy, norm = rng.uniform(0.002, 0.3), rng.uniform(0.3, 2.0), rng.uniform(0.05, 3.0)
    wander = 0.0
    for step in range(steps):
        done = 0.0 if shape == "level" else 1 - math.exp(-step / pace)
        warm = min(1.0, step / 40) ** 2 if shape == "warm-up" else 1.0
        blow = rng.gauss(0, 1)
        if shape == "heavy-tailed":
            blow /= math.sqrt(rng.gammavariate(1.5, 1 / 1.5))  # Student's t, 3 degrees
        if shape == "wandering":
            wander = 0.9 * wander + 0.45 * rng.gauss(0, 1)
            blow = wander + 0.3 * blow
        drift = -0.3 * gain * step / steps if shape == "drifting" else 0.0
        hard = -1.5 * noise * (step // 50 % 2) if shape == "epochs" else 0.0
        top = min(
            start + gain * done * warm + drift + hard + noise * blow,
            start + gain if shape == "saturating" else 1e9,
        )
        yield {
            "reward": top,
            "kl": kl * done * warm * math.exp(0.25 * rng.gauss(0, 1))
            if shape != "level"
            else kl * math.exp(0.25 * blow / 3),
            "entropy": entropy
            * (0.25 + 0.75 * math.exp(-step * warm / pace))
            * math.exp(0.06 * rng.gauss(0, 1)),
            "grad_norm": norm
            * (0.5 + 0.5 * math.exp(-step / pace))
            * math.exp(0.3 * rng.gauss(0, 1))
            * (8 if rng.random() < 0.01 else 1),
            "rewards_by_group": [
                [float(rng.random() < p) for _ in range(8)]
                for p in (rng.betavariate(0.8 + 2 * done, 1.5) for _ in range(16))
            ],
        }


def false_alarms(seeds, steps=STEPS):
    """Return how many alarms of each kind there were in healthy runs, by shape."""
    found = Counter()
    for shape in SHAPES:
        for seed in seeds:
            alarms = TrainingAlarms(journal=False)
            for step, numbers in enumerate(healthy(shape, seed, steps)):
                found.update((shape, one.kind) for one in alarms.observe(step, **numbers))
    return found


if __name__ == "__main__":
    runs = int(sys.argv[1])
    told = false_alarms(range(10_000, 10_000 + runs))
    every = runs * len(SHAPES)
    print(
        f"{sum(told.values())} alarms in {every} healthy runs of {STEPS} steps, all curves together: {dict(told)}"
    )
