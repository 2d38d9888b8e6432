"""Rollouts that survive their engines: what a user of rayguard writes."""

# ruff: noqa: PLC0415 - heavy libraries are imported where they are used: the driver does without them

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import ray

import rayguard
from examples.grpo.samples import Sample
from examples.grpo.sampling import engine_args, options_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future
    from pathlib import Path

    from examples.grpo.samples import Request

LOOK_S = 0.001


class Rollout(rayguard.RolloutMixin):
    """A vLLM engine with the trainer's current weights."""

    def __init__(self, model_dir: str, fuses: Path, weights: Callable[[], object] | None = None) -> None:
        self.args = engine_args(model_dir, fuse_of(fuses, ray.get_runtime_context().get_actor_id()))
        if weights is None:
            trainer = ray.get_actor("trainer")
            weights = lambda: ray.get(trainer.weights.remote())  # noqa: E731
        self.start_engine(weights=weights)

    def build_engine(self, settings: rayguard.EngineSettings) -> Any:
        """Start vLLM; called again, with safer settings, after it died."""
        from vllm import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        return AsyncLLM.from_engine_args(AsyncEngineArgs(**settings.as_kwargs(**self.args)))

    async def generated(self, tokens: int, within_s: float) -> None:
        """Return once the engine has generated that many tokens in all: for whoever strikes it at work."""
        until = time.monotonic() + within_s
        while self.engine_status()["tokens_generated"] < tokens and time.monotonic() < until:  # noqa: ASYNC110
            await asyncio.sleep(LOOK_S)


class Rollouts:
    """All rollouts: one pool."""

    def __init__(
        self, model_dir: str, fuses: Path, weights: Callable[[], object] | None = None, *, engines: int
    ) -> None:
        policy = rayguard.PoolPolicy(progress=False)  # the demo draws a view of its own
        self.pool = rayguard.RolloutPool(Rollout, model_dir, fuses, weights, engines=engines, policy=policy)
        self.names, self.handles = zip(*self.pool.handles.items(), strict=True)

    def sample(self, requests: Sequence[Request]) -> list[Future[Any]]:
        """Ask for a sample of each request."""
        return [self.pool.submit(r.prompt, options_of(r), request_id=r.id) for r in requests]

    def read(self, generations: Sequence[rayguard.Generation], requests: Sequence[Request]) -> list[Sample]:
        """Return the samples."""
        return [_read(generation, request) for generation, request in zip(generations, requests, strict=True)]

    def push(self) -> str:
        """Bring the engines to the trainer's current weights and return their version.

        Nobody waits for an actor that is away: it comes back with these weights or newer ones, and is given
        no request before.
        """
        return self.pool.update_weights()

    def wait_ready(self) -> None:
        """Wait until all engines serve."""
        self.pool.wait_ready()

    def serves(self, number: int) -> bool:
        """Say whether a rollout takes requests now."""
        engine = self.pool.status()["engines"].get(self.names[number])
        return engine is not None and engine["state"] == "serving"

    def close(self) -> None:
        """End all rollouts."""
        self.pool.close()


def fuse_of(fuses: Path, actor_id: str) -> Path:
    """Return where the fuse of a rollout lies (see ``faults``)."""
    return fuses / f"fuse-{actor_id}"


def _read(generation: rayguard.Generation, request: Request) -> Sample:
    if generation.error is not None:
        raise generation.error
    [sample] = generation.samples
    return Sample(
        id=request.id,
        prompt=request.prompt,
        tokens=tuple(sample.token_ids),
        logprobs=tuple(sample.logprobs),
        weight_version=sample.weight_version,
        tokens_saved=max(sample.cuts, default=0),
    )
