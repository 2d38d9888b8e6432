"""The rollout actors of the trials' pools, as users write them, and what users do to their engines.

Where they are started is ``stage``; what is done to them, and when, is ``acts``.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import ray

import rayguard
from rayguard.actors.methods import MARK
from rayguard.testing.fuse import Fuse
from tests.benchmarks.trials.plan import Place
from tests.benchmarks.trials.witness import witnessed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

WEIGHTS = ("w0", "w1", "w2")
SOURCE = "trials-source"
RANK = 4  # of the adapters
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
    "worker_extension_cls": "tests.benchmarks.trials.scheduler.FaultyWorker",
}
# The faults are ours: two of a kind say nothing about the engine, and no number of them is too many. A
# setting that a fault brought is taken back at once.
OFTEN = rayguard.RestartBudget(max_restarts=50, within_s=1.0)
PROBATION_S = 0.5


def guard_policy(standby: Any) -> rayguard.GuardPolicy:
    """Return the policy of all kinds of rollouts."""
    return rayguard.GuardPolicy(
        standby=standby, engine_budget=OFTEN, process_budget=OFTEN, probation_s=PROBATION_S
    )


def engine_of(args: dict[str, Any]) -> Any:
    """Build an engine."""
    from vllm import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    return AsyncLLM.from_engine_args(AsyncEngineArgs(**args))


class Rollout(rayguard.RolloutMixin):
    """What a user writes, with a fuse and a witness in its engine's scheduler."""

    MORE: ClassVar[Mapping[str, Any]] = {}  # of vLLM's arguments
    SPARES: ClassVar[int] = 0
    FUSE: ClassVar[str] = ""  # of another name than the actor's

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        marks = (vars(base).get(MARK) for base in cls.__mro__[1:])
        for mark in marks:  # a pool makes a subclass of what it is given
            if MARK in vars(cls) and mark is not None and not mark.implied:
                setattr(cls, MARK, replace(vars(cls)[MARK], policy=mark.policy))

    def __init__(self, folder: str) -> None:
        actor_id = self.FUSE or ray.get_runtime_context().get_actor_id()
        self.args = {**engine_args(Path(folder), actor_id), **self.MORE}
        self.begin(folder)

    def begin(self, _folder: str) -> None:
        """Start the engine."""
        source = ray.get_actor(SOURCE)
        self.start_engine(weights=lambda: ray.get(source.weights.remote()))

    def build_engine(self, settings: rayguard.EngineSettings) -> Any:
        return engine_of(settings.as_kwargs(**self.args))

    # -- what users do beside requests of the pool

    async def call(self, name: str, *given: Any, **options: Any) -> Any:
        """Make a call to the engine that is no request, and return its answer in plain types."""
        answer = await self.with_engine(lambda engine: getattr(engine, name)(*given, **options))
        return answer if isinstance(answer, bool | int | str | None) else repr(answer)[:200]

    async def call_within(self, within_s: float, name: str, *given: Any, **options: Any) -> Any:
        """Do as ``call``, and wait no longer than that."""
        return await asyncio.wait_for(self.call(name, *given, **options), within_s)

    async def ask(
        self,
        name: str,
        prompts: Sequence[Sequence[int]],
        sampling: Mapping[str, Any],
        adapters: Sequence[str] = (),
    ) -> list[tuple[int, ...]]:
        """Ask the engine itself, past the pool, each prompt with one of the adapters; return the tokens."""

        async def one(engine: Any, number: int) -> tuple[int, ...]:
            from vllm import SamplingParams
            from vllm.lora.request import LoRARequest

            last, which = None, number % len(adapters) if adapters else 0
            lora = LoRARequest(adapters[which], which + 1, adapters[which]) if adapters else None
            prompt, params = {"prompt_token_ids": list(prompts[number])}, SamplingParams(**sampling)
            async for output in engine.generate(prompt, params, f"{name}-{number}", lora_request=lora):
                last = output
            return tuple(last.outputs[0].token_ids)

        async def every(engine: Any) -> list[tuple[int, ...]]:
            return await asyncio.gather(*(one(engine, number) for number in range(len(prompts))))

        return await self.with_engine(every)

    async def stream(
        self, name: str, parts: Sequence[Sequence[int]], sampling: Mapping[str, Any], pause_s: float
    ) -> tuple[int, ...]:
        """Ask with an input that comes in parts, as that of a session does; return all tokens."""

        async def session(engine: Any) -> tuple[int, ...]:
            from vllm import SamplingParams
            from vllm.engine.protocol import StreamingInput
            from vllm.sampling_params import RequestOutputKind

            async def told() -> Any:
                for number, part in enumerate(parts):
                    if number:
                        await asyncio.sleep(pause_s)
                    yield StreamingInput(prompt={"prompt_token_ids": list(part)})

            params = SamplingParams(output_kind=RequestOutputKind.DELTA, **sampling)
            outputs = engine.generate(told(), params, name)
            return tuple([token async for output in outputs for token in output.outputs[0].token_ids])

        return await self.with_engine(session)


@rayguard.guard(policy=guard_policy("process"))
class ColdRollout(Rollout):
    """Nothing waits but a process."""


@rayguard.guard(policy=guard_policy("engine"))
class StandbyRollout(Rollout):
    """A second engine waits."""


@rayguard.guard(policy=rayguard.GuardPolicy(standby="engine", audit=0.05))
class WatchedRollout(Rollout):
    """With all on that looks for what is wrong, as users would have it."""


@rayguard.guard(policy=guard_policy("process"))
class AdapterRollout(Rollout):
    """Its engine takes LoRA adapters."""

    # vLLM's CPU kernels give requests without an adapter the one in the last slot, where others of their batch
    # have one (lora/ops/torch_ops/lora_ops.py indexes with -1): with two adapters the third slot stays empty.
    MORE: ClassVar = {"enable_lora": True, "max_loras": 3, "max_lora_rank": 8}

    async def load_adapter(self, path: str) -> bool:
        """Load the first adapter before any request names it."""
        from vllm.lora.request import LoRARequest

        return await self.with_engine(lambda engine: engine.add_lora(LoRARequest(path, 1, path)))


@rayguard.guard(policy=guard_policy("process"))
class RanksRollout(Rollout):
    """Its engine has two ranks."""

    MORE: ClassVar = {"tensor_parallel_size": 2, "distributed_executor_backend": "mp"}


@rayguard.guard(policy=guard_policy("process"))
class OwnPushRollout(Rollout):
    """Pushes weights by code of its own, and says how to make that push again."""

    def begin(self, folder: str) -> None:
        self.folder, self.source = Path(folder), ray.get_actor(SOURCE)
        self.start_engine(weights=self._push)

    async def take_weights(self) -> None:
        """Push the current weights."""
        await self.with_engine(self._push)

    async def _push(self, engine: Any) -> None:
        version = await self.source.current.remote()
        path = str(self.folder / "models" / version.partition("-")[2])
        await engine.collective_rpc("reload_weights", kwargs={"weights_path": path})
        await engine.reset_prefix_cache()
        await engine.update_weight_version(version)


@rayguard.guard(policy=guard_policy("process"))
class HeirRollout(Rollout):
    """Its next life begins in a worker that waits with vLLM imported, and goes on with the engine that waits."""

    SPARES: ClassVar = 1


@rayguard.guard(policy=guard_policy("process"))
class OwnedRollout(Rollout):
    """Its pool's owner is killed: actors of the next life go on with the engines, which are built alike."""

    SPARES: ClassVar = 2
    FUSE: ClassVar = "none"


ROLLOUTS = {
    Place.PLAIN: ColdRollout,
    Place.STANDBY: StandbyRollout,
    Place.ADAPTERS: AdapterRollout,
    Place.RANKS: RanksRollout,
    Place.OWN_PUSHES: OwnPushRollout,
    Place.HEIRS: HeirRollout,
}


def engine_args(folder: Path, actor_id: str) -> dict[str, Any]:
    """Return vLLM's arguments for the engine of an actor."""
    model = str(folder / "models" / WEIGHTS[0])
    return {**ENGINE, "model": model, **witnessed(witnesses(folder), fuse_of(folder, actor_id).path)}


def fuse_of(folder: Path, actor_id: str) -> Fuse:
    """Return the fuse in an actor's engine."""
    return Fuse(folder / f"fuse-{actor_id}")


def witnesses(folder: Path) -> Path:
    """Return where the cores' witnesses lie."""
    return folder / "witnesses"


def adapters(folder: Path) -> list[str]:
    """Return where the adapters lie, one for each of two adapters."""
    return [str(folder / "adapters" / name) for name in ("a0", "a1")]
