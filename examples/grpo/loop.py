"""GRPO, one step after the other. Nothing here knows about failures: that is the point of the demo.

The one disturbance is on purpose (``faults``). Where results are waited for: ``observer``.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from examples.grpo.cluster import START_DEADLINE_S
from examples.grpo.history import Step

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future

    from examples.grpo.cluster import Cast
    from examples.grpo.faults import Disturbance
    from examples.grpo.history import History
    from examples.grpo.observer import Observer
    from examples.grpo.samples import PromptSource, Request

STEP_DEADLINE_S = 180.0  # generous: a dead actor takes 30 s to come back, 60 s on a busy machine
TOLD_S = 30.0  # an incident is closed a moment after the engine serves
T = TypeVar("T")


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
        self._beside(self.cast.rollouts.wait_ready, deadline_s=START_DEADLINE_S)
        self._push(deadline_s=START_DEADLINE_S)
        self.history.ready_at = time.time()

    def step(self, number: int) -> None:
        """Sample, train, push: with the engines that serve."""
        self._until_targets_serve(number)
        started = time.time()
        self.history.doing = f"step {number}"
        self.disturbance.prepare(number)
        requests = self.disturbance.shape(self._requests(number))
        asked = self.cast.rollouts.sample(requests)
        self.disturbance.strike(number)
        try:
            samples = self.cast.rollouts.read(self._wait(asked), requests)
        finally:
            self.disturbance.settle()
        self.history.deliveries.arrived(samples, self.version)
        [metrics] = self._wait([self.cast.train(samples)])
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

    def finish(self) -> None:
        """Wait for who is still away: an incident that is open does not say how it ended."""
        self.history.doing = "waiting for engines that are away"
        self._beside(self.cast.rollouts.wait_ready, deadline_s=STEP_DEADLINE_S)
        self.observer.until(self._all_told, deadline_s=TOLD_S)
        self.observer.look(now=True)

    def _all_told(self) -> bool:
        return all(incident.closed_at is not None for incident in self.history.incidents)

    def _until_targets_serve(self, number: int) -> None:
        """Wait for those that this step is to hit: a blow at one that is away would show nothing."""
        for fault in self.disturbance.injector.due(number):
            if not self.cast.rollouts.serves(fault.target):
                self.history.doing = (
                    f"waiting until rollout {fault.target} serves, to hit it in step {number}"
                )
                self.observer.until(
                    partial(self.cast.rollouts.serves, fault.target), deadline_s=STEP_DEADLINE_S
                )

    def _requests(self, number: int) -> list[Request]:
        requests = [request for group in self.prompts.step(number) for request in group]
        self.history.deliveries.expect(requests)
        return requests

    def _push(self, *, deadline_s: float = STEP_DEADLINE_S) -> None:
        self.version = self._beside(self.cast.rollouts.push, deadline_s=deadline_s)

    def _beside(self, what: Callable[[], T], *, deadline_s: float) -> T:
        with ThreadPoolExecutor(max_workers=1) as beside:  # the view goes on meanwhile
            [result] = self._wait([beside.submit(what)], deadline_s=deadline_s)
        return result

    def _wait(self, futures: Sequence[Future[Any]], *, deadline_s: float = STEP_DEADLINE_S) -> list[Any]:
        return self.observer.wait(futures, deadline_s=deadline_s)
