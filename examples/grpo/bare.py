"""The same rollouts without rayguard (``GUARD=0``): plain Ray, plain vLLM, to see how it ends."""

# ruff: noqa: PLC0415 - heavy libraries are imported where they are used: the driver does without them

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import ray

from examples.grpo.rollout import LOOK_S, fuse_of
from examples.grpo.samples import Sample
from examples.grpo.sampling import engine_args, options_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Future

    from examples.grpo.samples import Request

PUSH_DEADLINE_S = 180.0


class BareRollouts:
    """All rollouts, each with a part of the batch of its own."""

    def __init__(self, model_dir: str, fuses: Path, *, engines: int) -> None:
        # rayguard is also a plugin of vLLM where it is installed.
        actor = BareRollout.options(runtime_env={"env_vars": {"VLLM_PLUGINS": ""}})
        self.handles = tuple(actor.remote(model_dir, fuses) for _ in range(engines))

    def sample(self, requests: Sequence[Request]) -> list[Future[Any]]:
        """Ask for a sample of each request."""
        parts = [requests[n :: len(self.handles)] for n in range(len(self.handles))]
        return [
            handle.generate.remote(part).future() for handle, part in zip(self.handles, parts, strict=True)
        ]

    def read(self, answers: Sequence[list[Sample]], _requests: Sequence[Request]) -> list[Sample]:
        """Return the samples."""
        return [sample for part in answers for sample in part]

    def push(self) -> str:
        """Bring all engines to the trainer's current weights and return their version."""
        versions = set(ray.get([handle.push.remote() for handle in self.handles], timeout=PUSH_DEADLINE_S))
        if len(versions) != 1:
            raise RuntimeError(f"the rollouts have different weights: {sorted(versions)}")
        return str(versions.pop())

    def wait_ready(self) -> None:
        """Do nothing: whoever calls an actor waits for it."""

    def serves(self, _number: int) -> bool:
        """Say yes: nothing here would know better."""
        return True

    def close(self) -> None:
        """End all rollouts: Ray does, with the cluster."""


@ray.remote(num_cpus=1)
class BareRollout:
    """Samples with vLLM from the trainer's current weights, as long as nothing happens."""

    def __init__(self, model_dir: str, fuses: Path) -> None:
        from vllm import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        self.trainer = ray.get_actor("trainer")
        self.pushed = Path(model_dir).with_name(f"pushed-{os.getpid()}")
        self.version = ""
        fuse = fuse_of(fuses, ray.get_runtime_context().get_actor_id())
        self.engine = AsyncLLM.from_engine_args(AsyncEngineArgs(**engine_args(model_dir, fuse)))

    async def generate(self, requests: Sequence[Request]) -> list[Sample]:
        """Sample every request."""
        return list(await asyncio.gather(*(self._sample(request) for request in requests)))

    async def _sample(self, request: Request) -> Sample:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        params = SamplingParams(**options_of(request), output_kind=RequestOutputKind.FINAL_ONLY)
        prompt = {"prompt_token_ids": list(request.prompt)}
        async for output in self.engine.generate(prompt, params, request.id):
            last = output
        completion = last.outputs[0]
        tokens = tuple(completion.token_ids)
        return Sample(
            id=request.id,
            prompt=request.prompt,
            tokens=tokens,
            logprobs=tuple(
                entry[token].logprob for token, entry in zip(tokens, completion.logprobs, strict=True)
            ),
            weight_version=self.version,
        )

    async def generated(self, _tokens: int, within_s: float) -> None:
        """Return once the engine has requests: it does not say how far it is."""
        until = time.monotonic() + within_s
        while not self.engine.output_processor.has_unfinished_requests() and time.monotonic() < until:  # noqa: ASYNC110
            await asyncio.sleep(LOOK_S)

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
