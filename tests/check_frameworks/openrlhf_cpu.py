"""What stands in for a GPU where OpenRLHF's own classes run on the CPU. Its code is left as it is, CUDA aside."""

from __future__ import annotations

import contextlib
import os
import signal
import types
from pathlib import Path
from unittest.mock import patch

import torch
from openrlhf.trainer.ray.vllm_worker_wrap import WorkerWrap

from tests.check_frameworks.openrlhf_absent import make_up

DIES = "RAYGUARD_CHECK_DIES"  # names a file: where it is there, an engine dies in the midst of a push
DIES_AT = "model.norm.weight"


class StoreGroup:
    """In the place of ``PyNcclCommunicator``: the same meeting point, tensors by way of its store."""

    def __init__(self, host, port, rank, world_size, _device):
        from vllm.distributed.utils import StatelessProcessGroup

        self._group = StatelessProcessGroup.create(
            host=host, port=port, rank=rank, world_size=world_size, store_timeout=60
        )

    def broadcast(self, tensor, src, stream=None):
        """Fill ``tensor`` where it is received."""
        received = self._group.broadcast(tensor.detach(), src)
        if received is not tensor:
            tensor.data.copy_(received)


@contextlib.contextmanager
def without_cuda():
    """Have CUDA's functions do nothing, and what is asked of its device made on the CPU."""
    from openrlhf.utils import distributed_util

    empty = torch.empty

    def made(*args, **kwargs):
        return empty(*args, **{**kwargs, "device": "cpu"})

    with contextlib.ExitStack() as stack:
        for name in ("current_stream", "current_device", "empty_cache", "synchronize"):
            stack.enter_context(patch.object(torch.cuda, name, lambda *_: None))
        stack.enter_context(patch.object(torch, "empty", made))
        stack.enter_context(patch.object(distributed_util, "stateless_init_process_group", StoreGroup))
        yield


class CpuWorkerWrap(WorkerWrap):
    """Its own methods, within what vLLM needs on the CPU: there, weights are packed after each load."""

    def init_process_group(self, *args, **kwargs):
        with without_cuda():
            super().init_process_group(*args, **kwargs)

    def update_weight(self, name, dtype, shape, empty_cache=False):
        if name == DIES_AT and Path(os.environ[DIES]).exists():
            os.kill(os.getpid(), signal.SIGKILL)
        from vllm.config import set_current_vllm_config
        from vllm.model_executor.model_loader import reload

        model = self.model_runner.model
        with set_current_vllm_config(self.vllm_config), torch.no_grad():
            if not getattr(self, "is_loading", False):
                reload.initialize_layerwise_reload(model)
                self.is_loading = True
            with without_cuda():
                super().update_weight(name, dtype, shape, empty_cache)
            if empty_cache:
                reload.finalize_layerwise_reload(model, self.model_config)
                self.is_loading = False


class Policy:
    """Rank 0 of the policy: OpenRLHF's own ``ActorPPOTrainer``, of which only the push of weights runs."""

    def __init__(self, engines):
        import torch.distributed

        make_up()
        from openrlhf.trainer.ray import ppo_actor

        vllm = types.SimpleNamespace(
            num_engines=len(engines), tensor_parallel_size=1, sync_backend="nccl", enable_prefix_caching=True
        )
        ds = types.SimpleNamespace(zero_stage=2, tensor_parallel_size=1)
        self.module = ppo_actor
        self.trainer = trainer = ppo_actor.ActorPPOTrainer.__new__(ppo_actor.ActorPPOTrainer)
        trainer.strategy = types.SimpleNamespace(args=types.SimpleNamespace(vllm=vllm, ds=ds))
        trainer.vllm_engines, trainer.use_cuda_ipc = engines, False
        torch.distributed.init_process_group(
            "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
        )
        with self._cpu():
            trainer._init_vllm_sync_group("nccl")

    @contextlib.contextmanager
    def _cpu(self):
        with (
            without_cuda(),
            patch.object(self.module, "stateless_init_process_group", StoreGroup),
            patch.object(
                self.module.deepspeed.zero, "GatheredParameters", lambda *_, **__: contextlib.nullcontext()
            ),
        ):
            yield

    def push(self, seed):
        """Push a model's weights as a step of training would."""
        from rayguard.testing.tiny_qwen import tiny_model
        from tests.check_frameworks.openrlhf_job import SPREAD

        model = tiny_model(seed, spread=SPREAD)
        self.trainer.actor = types.SimpleNamespace(model=types.SimpleNamespace(module=model), is_vlm=False)
        with self._cpu():
            self.trainer.broadcast_to_vllm()
