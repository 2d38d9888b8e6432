"""The same rollout without rayguard (``GUARD=0``): plain Ray, plain vLLM, to see how it ends."""

# ruff: noqa: PLC0415 - heavy libraries are imported where they are used: the driver does without them

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import ray

from examples.grpo.sampling import engine_args, sample

if TYPE_CHECKING:
    from collections.abc import Sequence

    from examples.grpo.samples import Request, Sample


@ray.remote(num_cpus=1)
class BareRollout:
    """Samples with vLLM from the trainer's current weights, as long as nothing happens."""

    def __init__(self, model_dir: str, fuse: Path) -> None:
        from vllm import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        self.trainer = ray.get_actor("trainer")
        self.pushed = Path(model_dir).with_name(f"pushed-{os.getpid()}")
        self.version = ""
        self.engine = AsyncLLM.from_engine_args(AsyncEngineArgs(**engine_args(model_dir, fuse)))

    async def generate(self, requests: Sequence[Request]) -> list[Sample]:
        """Sample every request."""
        return [replace(done, weight_version=self.version) for done in await sample(self.engine, requests)]

    async def push(self) -> str:
        """Bring the engine to the trainer's current weights and return their version."""
        weights = await self.trainer.weights.remote()
        await asyncio.to_thread(self._write, weights.payload)
        await self.engine.collective_rpc("reload_weights", kwargs={"weights_path": str(self.pushed)})
        await self.engine.reset_prefix_cache()
        self.version = weights.version
        return self.version

    def _write(self, payload: bytes) -> None:
        self.pushed.mkdir(exist_ok=True)
        (self.pushed / "model.safetensors").write_bytes(payload)

    async def engine_status(self) -> dict[str, Any]:
        """Say which processes the engine has: the schedule of faults needs to find them."""
        family = psutil.Process().children(recursive=True)
        named = [(process.pid, process.name()) for process in family]
        return {
            "epoch": 0,
            "rung": 0,
            "settings": [],
            "serving": not self.engine.errored,
            "weight_version": self.version,
            "tokens_generated": 0,
            "pids": {
                "core": next((pid for pid, name in named if "EngineCor" in name), None),
                "workers": [pid for pid, name in named if "Worker" in name],
            },
        }
