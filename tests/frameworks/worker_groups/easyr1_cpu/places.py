"""The places in EasyR1 that are changed, in its real modules, workers included: prints what came of each as JSON.

Without Ray, and with vLLM's part in empty modules: what is asked is whether the places are as they are known, and
what the real ``FSDPWorker`` makes of a batch size that its ranks do not divide.
"""

import importlib
import json
import sys
import types

import absent
import torch.distributed as dist

from rayguard.frameworks import easyr1_batches
from rayguard.frameworks.after_import import after_import
from rayguard.frameworks.worker_groups import verl as groups

WORLD = 6
for name in ("workers.rollout.vllm_rollout_spmd", "workers.sharding_manager.fsdp_vllm"):
    sys.modules[f"verl.{name}"] = absent
sys.modules.update({"qwen_vl_utils": absent, "qwen_vl_utils.vision_process": absent})
said = {}
for name in (
    easyr1_batches.DISPATCH,
    easyr1_batches.PROTOCOL,
    easyr1_batches.TRAINER,
    easyr1_batches.WORKERS,
):
    after_import(name, lambda module: said.__setitem__(module.__name__, easyr1_batches.attach(module)))
after_import(groups.MODULE, lambda module: said.__setitem__(module.__name__, groups.attach(module)))
importlib.import_module("verl.trainer.ray_trainer")
workers = importlib.import_module("verl.workers.fsdp_workers")

workers.init_device_mesh = lambda *_, **__: None
dist.get_world_size = lambda *_: WORLD
config = importlib.import_module("verl.workers.config").WorkerConfig()
config.rollout.n, config.actor.global_batch_size = 5, 128
worker = types.SimpleNamespace(config=config, print_rank0=lambda *_: None)
workers.FSDPWorker._init_dist_mesh(worker, config.actor, "actor")
proto = importlib.import_module("verl.protocol").DataProto
rows = proto.from_dict(tensors={"ids": workers.torch.arange(427)})
print(
    json.dumps(
        {
            "known": said,
            "each": config.actor.global_batch_size_per_device,
            "micro": config.actor.micro_batch_size_per_device_for_update,
            "mini": [len(one) for one in rows.split(config.actor.global_batch_size_per_device)],
        }
    )
)
