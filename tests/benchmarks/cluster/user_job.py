"""A small GRPO-like job, as somebody wrote it who has never heard of fault tolerance.

Rollouts generate, a scorer task rewards, a trainer updates. ``--mishaps`` lists the bugs that it has; what is
killed or stopped from outside, others do. Prints a line of JSON for each step, and one at the end.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import threading
import time
from typing import Any

import numpy as np
import ray

MISHAPS = ("exit", "raise", "leak", "eat")
_STEP_S = 0.5
_LEAK_MIB = 256


@ray.remote(max_restarts=4, max_task_retries=4)
class Rollout:
    """Makes samples."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def generate(self, step: int, seconds: float) -> Any:
        time.sleep(seconds)  # noqa: TID251 - what a user writes
        return np.full(50_000, self.rank + step, dtype=np.int64)


@ray.remote(max_restarts=4, max_task_retries=4)
class Trainer:
    """Learns, and keeps more than it should."""

    def __init__(self, leak_mib: int) -> None:
        self.kept: list[Any] = []
        self.leak_mib = leak_mib

    def update(self, samples: Any, rewards: list[float]) -> float:
        if self.leak_mib:
            self.kept.append(np.ones(self.leak_mib << 17))
            self.kept.append(ray.put(np.ones(1 << 17)))
        return float(sum(rewards)) + float(len(samples))


@ray.remote(max_restarts=0)
class Judge:
    """Looks at each step, until it waits for a lock that nobody gives back."""

    def __init__(self) -> None:
        self.lock = threading.Lock()

    def look(self, step: int, hang_at: int) -> None:
        self.lock.acquire()
        time.sleep(_STEP_S / 5)  # noqa: TID251 - what a user writes
        if step != hang_at:
            self.lock.release()


@ray.remote(max_restarts=0)
class Fragile:
    """Has a bug of each kind."""

    def __init__(self) -> None:
        self.kept: list[Any] = []

    def pid(self) -> int:
        return os.getpid()

    def leak(self) -> None:
        self.kept.append(np.ones(_LEAK_MIB << 17))
        time.sleep(_STEP_S)  # noqa: TID251 - what a user writes

    def exit(self) -> None:
        os._exit(7)

    def eat(self) -> int:
        kept = []
        while True:
            kept.append(np.ones(16 << 20))

    def raise_(self) -> None:
        raise ValueError("the batch of 512 is not divisible by 6")


@ray.remote(max_retries=0)
def score(samples: Any) -> float:
    """Reward."""
    return float(np.mean(samples))


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--address", required=True)
    options.add_argument("--steps", type=int, default=60)
    options.add_argument("--engines", type=int, default=3)
    options.add_argument("--leak-mib", type=int, default=0)
    options.add_argument("--hang-at", type=int, default=0, help="the step at which the judge hangs")
    options.add_argument("--mishaps", nargs="*", choices=MISHAPS, default=())
    options.add_argument("--runtime-env", type=json.loads, default={})
    chosen = options.parse_args()
    ray.init(address=chosen.address, runtime_env=chosen.runtime_env, log_to_driver=False)
    rollouts = [Rollout.options(name=f"rollout-{n}").remote(n) for n in range(chosen.engines)]
    trainer = Trainer.options(name="trainer").remote(chosen.leak_mib)
    judge = Judge.options(name="judge", num_cpus=0).remote()
    done = 0
    for step in range(chosen.steps):
        refs = [rollout.generate.remote(step, _STEP_S) for rollout in rollouts]
        rewards = ray.get([score.remote(ref) for ref in refs])
        loss = ray.get(trainer.update.remote(refs, rewards))
        if not chosen.hang_at or step <= chosen.hang_at + 1:  # the call after the hang waits for ever
            judge.look.remote(step, chosen.hang_at)
        if step < len(chosen.mishaps):
            mishap(chosen.mishaps[step])
        done += 1
        print(json.dumps({"step": step, "loss": loss}), flush=True)
    print(json.dumps({"done": done}), flush=True)
    ray.shutdown()
    return 0


def mishap(name: str) -> None:
    """Let one bug happen, and go on without it."""
    hungry = name in {"eat", "leak"}
    fragile = Fragile.options(num_cpus=0, resources={"large": 0.01} if hungry else None).remote()
    with contextlib.suppress(ray.exceptions.RayError, ValueError):
        print(json.dumps({name: ray.get(fragile.pid.remote(), timeout=60)}), flush=True)
        call = getattr(fragile, {"raise": "raise_"}.get(name, name))
        while True:
            ray.get(call.remote(), timeout=60)
    ray.kill(fragile)


if __name__ == "__main__":
    sys.exit(main())
