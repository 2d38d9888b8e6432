"""How each planned fault is brought about while the loop runs.

When: ``schedule``. The signals themselves: ``rayguard.testing.injector``.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import psutil
import ray

from examples.grpo.samples import seeded
from rayguard.testing.injector import SIGNALS, What

if TYPE_CHECKING:
    from collections.abc import Sequence

    from examples.grpo.samples import Request
    from rayguard.testing.fuse import Fuse
    from rayguard.testing.injector import FaultInjector, PlannedFault

STATUS_DEADLINE_S = 30.0
WORK_DEADLINE_S = 30.0


@dataclass(slots=True)
class Disturbance:
    """Disturbs the rollouts by plan; for each step: ``prepare``, ``shape``, ``strike``, ``settle``."""

    injector: FaultInjector
    rollouts: Sequence[Any]
    fuses: Sequence[Fuse]
    seed: int
    seeding_since: float | None = None  # wall clock, before the first of them is sent
    victims: dict[PlannedFault, psutil.Process] = field(default_factory=dict)
    tokens: dict[PlannedFault, int] = field(default_factory=dict)  # generated before the step

    def prepare(self, step: int) -> None:
        """Before the calls of ``step`` are sent: take aim, light fuses, switch on seeds."""
        for fault in self.injector.due(step):
            status = self._status(fault)
            self.victims[fault] = psutil.Process(_pid(self.rollouts[fault.target], fault.what, status))
            self.tokens[fault] = status["tokens_generated"]
            if fault.what is What.SCHEDULER_ASSERTION:
                self.fuses[fault.target].light(after=5)
            if fault.what is What.SEEDED_PARTIAL_PREFILL:
                self.seeding_since = self.seeding_since or time.time()

    def shape(self, requests: Sequence[Request]) -> Sequence[Request]:
        """Return the batch as it is asked for: with a seed for each request from the natural fault on.

        That is the fault: prompts of 200 tokens do not fit one step of 256 together, so that some are
        prefilled in two parts, and vLLM 0.32 on the CPU cannot do that to a request with a seed. All later
        batches are seeded too: that nothing happens any more proves the cure.
        """
        return seeded(requests, self.seed) if self.seeding_since is not None else requests

    def strike(self, step: int) -> None:
        """While the calls of ``step`` run: send what is done by a signal, in the middle of the work."""
        for fault in self.injector.due(step):
            if fault.what in SIGNALS:
                self._await_tokens(fault)
                self.injector.strike(fault, self.victims[fault])
            elif fault.what is What.SEEDED_PARTIAL_PREFILL:
                assert self.seeding_since is not None
                self.injector.record(fault, at=self.seeding_since, pid=self.victims[fault].pid)

    def settle(self) -> None:
        """While and after the calls run: note the fuses that burnt, as soon as they have."""
        for fault in self.injector.missing():
            burnt = self.fuses[fault.target].burnt()
            if fault.what is What.SCHEDULER_ASSERTION and burnt:
                self.injector.record(fault, at=burnt[0], pid=burnt[1])

    def _await_tokens(self, fault: PlannedFault) -> None:
        """Return when the step's requests are on their way, however fast this machine is.

        The actor looks itself: a question for each look would take as long as some engine steps. Should the
        engine be faster all the same, the blow hits an idle one, and the verdict says so.
        """
        wanted = self.tokens[fault] + fault.after_tokens
        looking = self.rollouts[fault.target].generated.remote(wanted, WORK_DEADLINE_S)
        ray.get(looking, timeout=WORK_DEADLINE_S + STATUS_DEADLINE_S)

    def _status(self, fault: PlannedFault) -> dict[str, Any]:
        answer = self.rollouts[fault.target].engine_status.remote()
        return dict(ray.get(answer, timeout=STATUS_DEADLINE_S))


def _pid(rollout: Any, what: What, status: dict[str, Any]) -> int:
    if what is What.KILL_ACTOR:
        return int(ray.get(rollout.__ray_call__.remote(lambda _: os.getpid()), timeout=STATUS_DEADLINE_S))
    pids = status["pids"]
    return int(pids["workers"][0] if what is What.KILL_WORKER else pids["core"])
