"""An hour without a fault, compressed: is a gang that compiles, writes or is slow ever taken for hung?

A second stands for twenty, so the least deadline that a gang learns is compressed as well; how it looks at
its ranks is not. Half of the long acts are of one rank, which the others wait for in a collective: that is
what a hang looks like.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

import rayguard
from rayguard.trainers.gang import call_pace
from tests.benchmarks.trials_gang.plan import COMPRESSED, RANKS, quiet_steps
from tests.benchmarks.trials_gang.stage import POLICY

if TYPE_CHECKING:
    from collections.abc import Callable


class QuietTrainer(rayguard.TrainerMixin):
    """Does on each call what it is told, then meets the others."""

    def setup(self, group: rayguard.RankGroup) -> None:
        self.number = 0

    def step(self, act: tuple[str, float]) -> int:
        """Work, compile or write, for so many seconds; then wait for all."""
        what, seconds = act
        {"work": _wait, "compile": _compile, "write": _write}[what](seconds)
        dist.all_reduce(torch.ones(8))
        self.number += 1
        return self.number


def _wait(seconds: float) -> None:
    threading.Event().wait(seconds)


def _compile(seconds: float) -> None:
    """Have torch compile a function, with a backend that takes its time."""

    def slow(module: Any, inputs: Any) -> Any:
        _wait(seconds)
        return module.forward

    torch._dynamo.reset()
    torch.compile(lambda x: x * 2 + 1, backend=slow)(torch.ones(2))


class _SlowFile:
    """A file on a disk that takes its time."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def write(self, data: bytes) -> int:
        _wait(self._seconds)
        self._seconds = 0.0
        return len(data)

    def flush(self) -> None:
        """Nothing is kept back."""


def _write(seconds: float) -> None:
    torch.save(torch.ones(64), _SlowFile(seconds))


def false_alarms(seconds: float, seed: int, tell: Callable[[str], None]) -> dict[str, object]:
    """Let a gang work for ``seconds``; return how often it recovered, and what was done meanwhile."""
    before, call_pace.LEAST_S = call_pace.LEAST_S, call_pace.LEAST_S / COMPRESSED
    done = {"steps": 0, "slow": 0, "compile": 0, "write": 0}
    try:
        with rayguard.TrainerGang(QuietTrainer, ranks=RANKS, policy=POLICY) as gang:
            until, steps = time.monotonic() + seconds, quiet_steps(seed)
            while (left := until - time.monotonic()) > 0:
                step = next(steps)
                gang.call("step", each=list(step.acts))
                done["steps"] += 1
                act, _ = max(step.acts, key=lambda one: one[1])
                if step.acts != (step.acts[0],) * RANKS or act != "work":
                    done["slow" if act == "work" else act] += 1
                if done["steps"] % 50 == 0:
                    tell(f"without faults, {left:.0f} s to go")
            status = gang.status()
    finally:
        call_pace.LEAST_S = before
    return {"false_alarms": status.recoveries, "quiet": done, "alarms": list(status.causes)}
