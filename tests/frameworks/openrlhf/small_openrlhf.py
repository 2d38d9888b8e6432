"""The places of OpenRLHF 0.11.2 that are touched, over an engine that is none. Loaded anew by each test."""

from __future__ import annotations

from types import SimpleNamespace

import ray

from tests.frameworks.openrlhf.fake_engine import Built

vllm = SimpleNamespace(
    AsyncEngineArgs=dict,
    AsyncLLMEngine=SimpleNamespace(from_engine_args=lambda given: Built(**given)),
)


@ray.remote
class RolloutRayActor:
    """As OpenRLHF writes it."""

    async def __init__(self, *args, bundle_indices=None, agent_func_path=None, **kwargs):
        kwargs.pop("num_gpus")
        self.kwargs = kwargs
        engine_args = vllm.AsyncEngineArgs(*args, **self.kwargs)
        self.llm = vllm.AsyncLLMEngine.from_engine_args(engine_args)
        await self.llm.is_sleeping()

    async def init_process_group(  # noqa: PLR0913, PLR0917 - as it is there
        self, master_address, master_port, rank_offset, world_size, group_name, backend, use_ray
    ):
        return await self.llm.collective_rpc(
            "init_process_group",
            args=(master_address, master_port, rank_offset, world_size, group_name, backend, use_ray),
        )

    async def update_weight(self, name, dtype, shape, empty_cache=False):
        return await self.llm.collective_rpc("update_weight", args=(name, dtype, shape, empty_cache))

    async def update_weight_cuda_ipc(self, name, dtype, shape, ipc_handles, empty_cache=False):
        return await self.llm.collective_rpc(
            "update_weight_cuda_ipc", args=(name, dtype, shape, ipc_handles, empty_cache)
        )

    async def generate(self, prompt_token_ids, sampling_params, multi_modal_data=None):
        return self.llm.generate(prompt_token_ids, sampling_params)


class ActorPPOTrainer:
    """As OpenRLHF writes it."""

    def __init__(self, strategy, vllm_engines=None):
        self.strategy = strategy
        self.vllm_engines = vllm_engines
        self.use_cuda_ipc = False
        self.done = []

    def _init_vllm_sync_group(self, backend: str):
        self.done.append(backend)

    def broadcast_to_vllm(self):
        def push(engine):
            engine.update_weight()

        for engine in self.vllm_engines:
            push(engine)
        self.done.append("pushed")
