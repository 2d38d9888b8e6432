"""The trainer: GRPO in plain torch, in a plain Ray actor.

Rollouts (``rollout``) sample from the weights it hands out; it never talks to them.
"""

# ruff: noqa: PLC0415 - heavy libraries are imported where they are used: the driver does without them

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import ray
import torch

import rayguard
from examples.grpo.reward import reward

if TYPE_CHECKING:
    from collections.abc import Sequence

    from examples.grpo.samples import Sample


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """What one training step was like. ``logp_diff``: rollout against trainer, worst token."""

    reward: float
    loss: float
    logp_diff: float


@ray.remote(num_cpus=1)
class Trainer:
    """Learns from groups of samples: better than the group's mean is reinforced, worse discouraged."""

    def __init__(self, model_dir: str, learning_rate: float = 3e-3) -> None:
        from transformers import AutoModelForCausalLM

        self.model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=learning_rate)
        self.updates = 0

    def step(self, samples: Sequence[Sample]) -> Metrics:
        """Take one policy-gradient step on ``samples``."""
        rewards = torch.tensor([reward(sample.tokens) for sample in samples])
        advantages = normalised([sample.group for sample in samples], rewards)
        sampled = torch.tensor([sample.logprobs for sample in samples])
        logprobs = self._logprobs(samples)
        ratio = (logprobs - sampled).exp()
        loss = -(ratio * advantages[:, None]).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.updates += 1
        diff = (logprobs - sampled).abs().max()
        return Metrics(reward=rewards.mean().item(), loss=loss.item(), logp_diff=diff.item())

    def version(self) -> str:
        """Name the current weights."""
        return f"update-{self.updates}"

    def weights(self) -> rayguard.Weights:
        """Return the current weights under their version."""
        return rayguard.Weights.from_tensors(self.version(), self.model.state_dict())

    def logprobs(self, samples: Sequence[Sample]) -> list[list[float]]:
        """Return what the current weights think of each sampled token."""
        with torch.no_grad():
            return self._logprobs(samples).tolist()

    def _logprobs(self, samples: Sequence[Sample]) -> torch.Tensor:
        """Score the sampled tokens; prompts and completions all have the same length here."""
        ids = torch.tensor([sample.prompt + sample.tokens for sample in samples])
        new = len(samples[0].tokens)
        logits = self.model(ids, logits_to_keep=new + 1).logits[:, :-1]
        return logits.log_softmax(-1).gather(-1, ids[:, -new:, None]).squeeze(-1)


def normalised(groups: Sequence[str], rewards: torch.Tensor) -> torch.Tensor:
    """Return each reward relative to its own group: (reward - mean) / std."""
    advantages = torch.zeros_like(rewards)
    for group in set(groups):
        mine = torch.tensor([name == group for name in groups])
        advantages[mine] = (rewards[mine] - rewards[mine].mean()) / (rewards[mine].std() + 1e-6)
    return advantages
