"""The trainer as a gang (``TRAINER=gang``): GRPO over three ranks, sharded with FSDP2; one of them is killed.

What a user of rayguard writes is ``RankTrainer``; the rest is the demo's.
"""

# ruff: noqa: PLC0415 - heavy libraries are imported where they are used: the driver does without them

from __future__ import annotations

import os
import signal
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import torch

import rayguard
from examples.grpo.history import KilledRank
from examples.grpo.reward import reward
from examples.grpo.trainer import Metrics, normalised

if TYPE_CHECKING:
    from collections.abc import Sequence

    from examples.grpo.history import History
    from examples.grpo.samples import Sample

RANKS = 3
STRUCK = 1  # the rank that is killed
_MICRO = 8  # rows


class RankTrainer(rayguard.TrainerMixin):
    """One rank: its shard of the model, its part of each batch."""

    def __init__(self, model_dir: str, learning_rate: float = 3e-3) -> None:
        self.model_dir, self.learning_rate = model_dir, learning_rate

    def setup(self, group: rayguard.RankGroup) -> None:
        """Build the model on this generation's process group; called again after each fault."""
        from torch.distributed.fsdp import fully_shard
        from transformers import AutoModelForCausalLM

        self.model = AutoModelForCausalLM.from_pretrained(self.model_dir, dtype=torch.float32)
        fully_shard(self.model, mesh=group.mesh())
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=self.learning_rate)

    def step(self, chunk: rayguard.BatchChunk) -> tuple[float, float]:
        """Take one policy-gradient step; return this rank's part of the loss, and its worst difference."""
        loss, diff = 0.0, 0.0
        for part, real in chunk:
            logprobs = self._logprobs(part["ids"], part["sampled"].shape[1])
            ratio = (logprobs - part["sampled"]).exp()
            of_rows = -(ratio * part["advantage"][:, None]).mean(1)[:real]
            share = of_rows.sum() * chunk.weight()
            share.backward()
            loss += share.item() / chunk.world
            if real:
                diff = max(diff, (logprobs - part["sampled"])[:real].abs().max().item())
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss, diff

    def process(self) -> int:
        """Say which process this rank is."""
        return os.getpid()

    def _logprobs(self, ids: torch.Tensor, new: int) -> torch.Tensor:
        logits = self.model(ids, logits_to_keep=new + 1).logits[:, :-1]
        return logits.log_softmax(-1).gather(-1, ids[:, -new:, None]).squeeze(-1)


class GangOfRanks:
    """The gang, as the loop uses it; kills a rank in one of the steps, in the midst of it."""

    def __init__(self, model_dir: str, history: History) -> None:
        self._history = history
        self._strike_at = history.steps_planned // 2
        self._gang = rayguard.TrainerGang(
            RankTrainer, ranks=RANKS, spares=1, args=(model_dir,), options={"num_cpus": 0.1}
        )
        self._gang.publish_weights()
        self.weights = self._gang.weights()
        self._beside = ThreadPoolExecutor(max_workers=1)

    def step(self, samples: Sequence[Sample]) -> Future[Metrics]:
        """Begin one step on all ranks."""
        return self._beside.submit(self._step, samples, len(self._history.steps))

    def close(self) -> None:
        """End it."""
        self._beside.shutdown()
        self._gang.close()

    def _step(self, samples: Sequence[Sample], number: int) -> Metrics:
        if number == self._strike_at:
            self._strike(number)
        rewards = torch.tensor([reward(sample.tokens) for sample in samples])
        batch: dict[str, Any] = {
            "ids": torch.tensor([sample.prompt + sample.tokens for sample in samples]),
            "sampled": torch.tensor([sample.logprobs for sample in samples]),
            "advantage": normalised([sample.group for sample in samples], rewards),
        }
        parts = self._gang.call("step", each=rayguard.split_batch(batch, world=RANKS, micro=_MICRO))
        self._gang.publish_weights()
        return Metrics(
            reward=rewards.mean().item(),
            loss=sum(loss for loss, _ in parts),
            logp_diff=max(diff for _, diff in parts),
        )

    def _strike(self, number: int) -> None:
        """Kill a rank while it computes: a step takes some tenths of a second."""
        pid = self._gang.call("process")[STRUCK]

        def kill() -> None:
            self._history.killed_ranks.append(KilledRank(step=number, rank=STRUCK, pid=pid, at=time.time()))
            os.kill(pid, signal.SIGKILL)

        threading.Timer(0.1, kill).start()
