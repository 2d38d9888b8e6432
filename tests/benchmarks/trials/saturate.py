"""A pool that is never without work, with all on that could be mistaken, and no fault: ``--saturate MINUTES``.

Each engine has a standby, is watched for hangs, answers some requests once more (the audit), and is given new
weights every half minute, after which it answers canaries. Whatever is restarted, or told as an incident, is a
false alarm.
"""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, Any

import ray

from rayguard.recovery.journal import Journal
from tests.benchmarks.trials import rollouts, stage
from tests.benchmarks.trials.batch import ANSWER_S
from tests.benchmarks.trials.oracle import GREEDY, SEEDED

if TYPE_CHECKING:
    from pathlib import Path

    from tests.benchmarks.trials.plan import Size

PUSH_S = 30.0
BATCH = 200  # prompts at once: more than the engines run
NONE = ("restarts", "actors_restarted", "incidents", "false_hangs", "errors")


def saturated(folder: Path, size: Size, minutes: float) -> tuple[dict[str, Any], int]:
    """Return the figures, and whether anything happened that should not have."""
    load = os.getloadavg()[0]
    with stage.own_ray(folder):
        ray.get(stage.build_models.remote(str(folder)), timeout=stage.START_S)
        source = ray.remote(num_cpus=0)(stage.Source).options(name=rollouts.SOURCE).remote(str(folder))
        with stage.a_pool(folder, size.engines, rollouts.WatchedRollout) as pool:
            before = _actors(pool)
            done = _asked(pool, source, minutes)
            states = [ray.get(h.engine_status.remote(), timeout=60) for h in pool.handles.values()]
            again = _actors(pool) - before
    incidents = Journal(stage.home(folder)).read()
    told = {
        "minutes": minutes,
        **done,
        "restarts": sum(state["restarts"] for state in states),
        "actors_restarted": len(again),
        "incidents": len(incidents),
        "false_hangs": sum("hang" in one.kind for one in incidents),
        "told": [one.sentence() for one in incidents],
        "load_before_and_after": [round(load, 1), round(os.getloadavg()[0], 1)],
    }
    return told, int(any(told[name] for name in NONE))


def _actors(pool: Any) -> set[int]:
    return {one["pid"] for one in pool.status()["engines"].values()}


def _asked(pool: Any, source: Any, minutes: float) -> dict[str, int]:
    """Ask for as long as that, one batch after the other, with a push now and then."""
    began, pushed_at, turn = time.monotonic(), time.monotonic(), 0
    done = {"requests": 0, "tokens": 0, "pushes": 0, "errors": 0}
    while time.monotonic() - began < minutes * 60:
        turn += 1
        prompts = [[20 + n % 40, 7, 90 + turn % 300, 11] * (3 + n % 6) for n in range(BATCH)]
        sampling = [
            {**(SEEDED if n % 2 else GREEDY), "max_tokens": 40 + n % 110, "ignore_eos": True, **_seed(n)}
            for n in range(BATCH)
        ]
        for generation in pool.as_completed(prompts, sampling, deadline_s=ANSWER_S):
            done["requests"] += 1
            done["errors"] += generation.error is not None
            done["tokens"] += sum(len(sample.generated) for sample in generation.samples)
        if time.monotonic() - pushed_at > PUSH_S:
            name = rollouts.WEIGHTS[turn % len(rollouts.WEIGHTS)]
            ray.get(source.advance.remote(name), timeout=60)
            pool.update_weights()
            pushed_at, done["pushes"] = time.monotonic(), done["pushes"] + 1
        print(f"{time.monotonic() - began:7.0f} s  {done}", file=sys.stderr, flush=True)
    return done


def _seed(number: int) -> dict[str, int]:
    return {"seed": number} if number % 2 else {}
