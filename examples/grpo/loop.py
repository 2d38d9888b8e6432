"""GRPO, one step after the other. Nothing here knows about failures: that is the point of the demo.

The one disturbance is on purpose (``faults``). Where results are waited for: ``observer``.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from examples.grpo.cluster import ROLLOUTS, START_DEADLINE_S
from examples.grpo.history import Step

if TYPE_CHECKING:
    from examples.grpo.cluster import Cast
    from examples.grpo.faults import Disturbance
    from examples.grpo.history import History
    from examples.grpo.observer import Observer
    from examples.grpo.samples import PromptSource, Request

STEP_DEADLINE_S = 180.0  # generous: a dead actor takes 30 s to come back, 60 s on a busy machine


@dataclass(slots=True)
class Loop:
    """The training: ``start``, then ``step`` after ``step``."""

    cast: Cast
    prompts: PromptSource
    observer: Observer
    disturbance: Disturbance
    history: History
    version: str = ""

    def start(self) -> None:
        """Wait for the engines and give them the first weights."""
        self.history.doing = "starting the engines"
        self._push(deadline_s=START_DEADLINE_S)
        self.history.ready_at = time.time()

    def step(self, number: int) -> None:
        """Sample, train, push."""
        started = time.time()
        self.history.doing = f"step {number}"
        batches = self._batches(number)
        self.disturbance.prepare(number)
        calls = [
            rollout.generate.remote(self.disturbance.shape(i, batches[i]))
            for i, rollout in enumerate(self.cast.rollouts)
        ]
        self.disturbance.strike(number)
        try:
            samples = [sample for batch in self._wait(calls) for sample in batch]
        finally:
            self.disturbance.settle()
        self.history.deliveries.arrived(samples, self.version)
        [metrics] = self._wait([self.cast.trainer.step.remote(samples)])
        self._push()
        self.history.steps.append(
            Step(
                number=number,
                started_at=started,
                ended_at=time.time(),
                tokens=sum(len(sample.tokens) for sample in samples),
                reward=metrics.reward,
                logp_diff=metrics.logp_diff,
            )
        )

    def _batches(self, number: int) -> list[list[Request]]:
        groups = self.prompts.step(number)
        batches = [[request for group in groups[i::ROLLOUTS] for request in group] for i in range(ROLLOUTS)]
        for batch in batches:
            self.history.deliveries.expect(batch)
        return batches

    def _push(self, *, deadline_s: float = STEP_DEADLINE_S) -> None:
        [self.version] = self._wait([self.cast.trainer.version.remote()], deadline_s=deadline_s)
        pushed = self._wait([rollout.push.remote() for rollout in self.cast.rollouts], deadline_s=deadline_s)
        if set(pushed) != {self.version}:
            raise RuntimeError(f"the trainer is at {self.version}, the rollouts say {pushed}")

    def _wait(self, refs: list[Any], *, deadline_s: float = STEP_DEADLINE_S) -> list[Any]:
        return self.observer.wait(refs, deadline_s=deadline_s)
