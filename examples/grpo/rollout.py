"""A rollout that survives its engine: what a user of rayguard writes."""

# ruff: noqa: PLC0415 - heavy libraries are imported where they are used: the driver does without them

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import ray

import rayguard
from examples.grpo.sampling import engine_args, sample

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from examples.grpo.samples import Request, Sample


@ray.remote(num_cpus=1)
class Rollout(rayguard.RolloutMixin):
    """Samples with vLLM from the trainer's current weights."""

    def __init__(self, model_dir: str, fuse: Path) -> None:
        self.args = engine_args(model_dir, fuse)
        trainer = ray.get_actor("trainer")
        self.start_engine(weights=lambda: ray.get(trainer.weights.remote()))

    def build_engine(self, settings: rayguard.EngineSettings) -> Any:
        """Start vLLM; called again, with safer settings, after it died."""
        from vllm import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        return AsyncLLM.from_engine_args(AsyncEngineArgs(**settings.as_kwargs(**self.args)))

    async def generate(self, requests: Sequence[Request]) -> list[Sample]:
        """Sample every request, whatever happens to the engine meanwhile."""
        return await self.with_engine(lambda engine: sample(engine, requests))

    async def push(self) -> str:
        """Bring the engine to the trainer's current weights and return their version."""
        return await self.update_weights()
