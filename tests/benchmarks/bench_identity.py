"""Requests interrupted at random moments: is their output bit-identical, how soon is a death seen?

Real vLLM on the CPU in this process; each trial kills the engine core or its worker with SIGKILL after a
random number of tokens of a batch of all kinds of sampling (``tests.engine.kinds``), and compares tokens,
text and log-probabilities with an undisturbed run. Last line JSON.
``python -m tests.benchmarks.bench_identity --trials 50``
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from tests.engine.kinds import Roomy, generate, kinds_of, model
from tests.engine.real import ENVIRONMENT, incidents


def run(trials: int, seed: int) -> dict[str, Any]:
    dice = random.Random(seed)
    folder = Path(tempfile.mkdtemp(prefix="rayguard-identity-"))
    os.environ["RAYGUARD_HOME"] = str(folder / "home")
    owner = Roomy(model(folder / "model"), "LLM")
    from rayguard import GuardPolicy, RestartBudget

    often = RestartBudget(max_restarts=10 * trials, within_s=3600.0)  # the faults are ours, not the engine's
    owner.start_engine(policy=GuardPolicy(engine_budget=often))
    kinds = kinds_of(owner)
    undisturbed = generate(owner, kinds)
    total = sum(len(sample[0]) for samples, _ in undisturbed.values() for sample in samples)
    others: Counter[str] = Counter()
    different, detected, recovered, lost, misread = 0, [], [], 0, 0
    for trial in range(trials):
        which = dice.choice(["core", "worker"])
        before = len(incidents())
        with owner.struck(which, after_tokens=dice.randrange(1, total - 200)) as struck:
            answers = generate(owner, kinds)
        wrong = [name for name in kinds if answers[name] != undisturbed[name]]
        others.update(wrong)
        different += bool(wrong)
        (incident,) = incidents()[before:]
        detected.append(max(0.0, incident.detected_at - struck[0][1]))
        recovered.append(incident.recover_s or 0.0)
        lost += incident.tokens_lost
        if incident.kind != "engine_dead":
            misread += 1
            print(incident.cause, incident.evidence, incident.consequences)
        print(
            f"trial {trial:3d} {which:6s} {incident.tokens_saved:4d} tokens kept, {recovered[-1]:.2f} s",
            flush=True,
        )
    owner.stop_engine()
    detected.sort()
    return {
        "trials": trials,
        "not_identical": different,
        "not_identical_kinds": dict(others),
        "tokens_lost": lost,
        "misread": misread,
        "detect_median_s": round(statistics.median(detected), 4),
        "detect_p99_s": round(detected[min(len(detected) - 1, int(0.99 * len(detected)))], 4),
        "recover_median_s": round(statistics.median(recovered), 3),
        "load": round(os.getloadavg()[0], 1),
        "seed": seed,
    }


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--trials", type=int, default=50)
    options.add_argument("--seed", type=int, default=0)
    os.environ.update(ENVIRONMENT)
    chosen = options.parse_args()
    print(json.dumps(run(chosen.trials, chosen.seed)))
