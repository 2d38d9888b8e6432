"""Where trials happen: a Ray of their own, a weight source, pools of real engines on the CPU.

What is done there is ``run``; watching a pool from inside is ``observer``.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray

import rayguard
from rayguard.actors.methods import MARK
from rayguard.testing.fuse import Fuse, fused
from tests.benchmarks.trials.witness import witnessed
from tests.engine.real import ENVIRONMENT

if TYPE_CHECKING:
    from collections.abc import Iterator

REPOSITORY = Path(__file__).resolve().parents[3]
WEIGHTS = ("w0", "w1", "w2")
SOURCE = "trials-source"
START_S = 900.0
# Prompts and answers together fit one step: a request with a seed that is prefilled in two parts kills vLLM's
# core on the CPU by itself, and a recovery prefills all that was generated.
ENGINE = {
    "dtype": "float32",
    "enforce_eager": True,
    "max_model_len": 256,
    "max_num_seqs": 16,
    "block_size": 32,
    "max_num_batched_tokens": 16 * 256,
    "kv_cache_memory_bytes": 64 << 20,
    "generation_config": "vllm",
    "enable_chunked_prefill": True,
    "disable_log_stats": True,
}
# The faults are ours: two of a kind say nothing about the engine, and no number of them is too many. A
# setting that a fault brought is taken back at once.
OFTEN = rayguard.RestartBudget(max_restarts=50, within_s=1.0)


def guard_policy(standby: Any) -> rayguard.GuardPolicy:
    """Return the policy of both kinds of rollouts."""
    return rayguard.GuardPolicy(standby=standby, engine_budget=OFTEN, process_budget=OFTEN, probation_s=0.5)


def engine_of(args: dict[str, Any]) -> Any:
    """Build an engine."""
    from vllm import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    return AsyncLLM.from_engine_args(AsyncEngineArgs(**args))


class Rollout(rayguard.RolloutMixin):
    """What a user writes, with a fuse and a witness in its engine's scheduler."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        marks = (vars(base).get(MARK) for base in cls.__mro__[1:])
        for mark in marks:  # a pool makes a subclass of what it is given
            if MARK in vars(cls) and mark is not None and not mark.implied:
                setattr(cls, MARK, replace(vars(cls)[MARK], policy=mark.policy))

    def __init__(self, folder: str) -> None:
        self.args = engine_args(Path(folder), ray.get_runtime_context().get_actor_id())
        source = ray.get_actor(SOURCE)
        self.start_engine(weights=lambda: ray.get(source.weights.remote()))

    def build_engine(self, settings: rayguard.EngineSettings) -> Any:
        return engine_of(settings.as_kwargs(**self.args))


@rayguard.guard(policy=guard_policy("process"))
class ColdRollout(Rollout):
    """Nothing waits but a process."""


@rayguard.guard(policy=guard_policy("engine"))
class StandbyRollout(Rollout):
    """A second engine waits."""


def engine_args(folder: Path, actor_id: str) -> dict[str, Any]:
    """Return vLLM's arguments for the engine of an actor."""
    lit = fused(fuse_of(folder, actor_id).path)
    return {
        **ENGINE,
        "model": str(folder / "models" / WEIGHTS[0]),
        "scheduler_cls": "tests.benchmarks.trials.scheduler.WitnessedScheduler",
        "additional_config": {**lit["additional_config"], **witnessed(witnesses(folder))},
    }


def fuse_of(folder: Path, actor_id: str) -> Fuse:
    """Return the fuse in an actor's engine."""
    return Fuse(folder / f"fuse-{actor_id}")


def witnesses(folder: Path) -> Path:
    """Return where the cores' witnesses lie."""
    return folder / "witnesses"


class Source:
    """The trainer's part: says which weights are current."""

    def __init__(self, folder: str) -> None:
        files = {name: Path(folder) / "models" / name / "model.safetensors" for name in WEIGHTS}
        self.bodies = {name: ray.put(file.read_bytes()) for name, file in files.items()}
        self.version = f"0-{WEIGHTS[0]}"

    def weights(self) -> tuple[str, Any]:
        return self.version, self.bodies[self.version.partition("-")[2]]

    def advance(self, name: str) -> str:
        """Make ``name`` current, under a version that is new."""
        self.version = f"{int(self.version.partition('-')[0]) + 1}-{name}"
        return self.version


class Cold:
    """Starts the same engine as vLLM does it: for comparison."""

    def __init__(self, folder: str) -> None:
        import vllm.v1.engine.async_llm  # noqa: F401 - no part of what is measured

        self.args = engine_args(Path(folder), "cold")

    async def start_s(self) -> float:
        """Return the seconds to the first token."""
        from vllm import SamplingParams

        began = time.monotonic()
        engine = await asyncio.to_thread(engine_of, self.args)
        async for _ in engine.generate(
            {"prompt_token_ids": [20, 7, 90, 11]}, SamplingParams(temperature=0.0, max_tokens=1), "first"
        ):
            took = time.monotonic() - began
        core = engine.engine_core.resources.engine_manager.processes[0]
        core.kill()
        core.join(10)
        engine.shutdown()
        return took


@ray.remote
def build_models(folder: str) -> None:
    """Write a model and its tokenizer for each of the weights."""
    from examples.grpo.text import sentences
    from rayguard.testing import tiny_qwen

    for seed, name in enumerate(WEIGHTS):
        texts = list(sentences(0, 2_000))
        tiny_qwen.build(Path(folder) / "models" / name, seed, texts=texts, spread=0.2)


@contextmanager
def own_ray(folder: Path) -> Iterator[None]:
    """Start a Ray on this machine for as long as the block runs, never joining another one."""
    path = os.pathsep.join(filter(None, (str(REPOSITORY), os.environ.get("PYTHONPATH"))))
    environment = {
        **ENVIRONMENT,
        "RAYGUARD_HOME": str(home(folder)),
        "TORCHDYNAMO_DISABLE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONPATH": path,
    }
    ray.init(
        address="local",
        num_cpus=4,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
        runtime_env={"env_vars": environment},
    )
    logging.getLogger("vllm").setLevel(logging.ERROR)  # imported here only to unpickle an engine's error
    try:
        yield
    finally:
        ray.shutdown()


def home(folder: Path) -> Path:
    """Return where the journal lies."""
    return folder / "rayguard"


@contextmanager
def a_pool(folder: Path, engines: int, *, standby: bool) -> Iterator[rayguard.RolloutPool]:
    """Make a pool and end it; returns when all engines serve."""
    policy = rayguard.PoolPolicy(progress=False)
    kind = StandbyRollout if standby else ColdRollout
    with rayguard.RolloutPool(
        kind, str(folder), engines=engines, options={"num_cpus": 0}, policy=policy
    ) as pool:
        pool.wait_ready(timeout_s=START_S)
        yield pool
