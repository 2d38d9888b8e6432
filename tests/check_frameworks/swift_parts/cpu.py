"""What stands in for a GPU where ``swift rollout`` and its clients run on the CPU. All else of them is their own.

- ``swift rollout`` counts devices, and refuses none.
- The group for weights is a store's in NCCL's place, on both sides.
- vLLM packs weights for the CPU after it has loaded them, so that they are loaded layer by layer.
"""

from __future__ import annotations

import os
from pathlib import Path

from rayguard.frameworks.after_import import after_import
from tests.check_frameworks.environments import ROOT
from tests.check_frameworks.swift_parts import training

_JOB = Path(__file__).parent / "job"
_OWN = {
    "VLLM_HOST_IP": "127.0.0.1", "VLLM_PLUGINS": "none", "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}  # fmt: skip


def environment_of(**more: object) -> dict[str, str]:
    """Return the environment of a server of ms-swift, or of a client, without a word of rayguard."""
    return training.environment_of(**_OWN, PYTHONPATH=os.pathsep.join([str(_JOB), str(ROOT)]), **more)


def attach() -> None:
    """Have each module changed once it has been imported."""
    after_import("swift.arguments.deploy_args", _one_device)
    after_import("swift.rlhf_trainers.vllm_client", _group)
    after_import("swift.pipelines.infer.rollout", _worker)


def _one_device(module):
    module.get_device_count = lambda: 1


def _group(module):
    import torch

    from tests.check_frameworks.swift_parts.store_group import StoreGroup

    module.PyNcclCommunicator = StoreGroup
    module.synchronize = lambda *_: None
    module.get_torch_device = lambda: torch  # torch.cpu has no device to be within


def _worker(module):
    _group(module)
    cls = module.WeightSyncWorkerExtension
    cls.update_flattened_params = _layer_by_layer(cls.update_flattened_params)
    cls.process_weights_after_loading = _packed


def _layer_by_layer(update):
    def begun(self, *args, **kwargs):
        import torch
        from vllm.config import set_current_vllm_config
        from vllm.model_executor.model_loader import reload

        with set_current_vllm_config(self.vllm_config), torch.no_grad():
            if not getattr(self, "is_loading", False):
                reload.initialize_layerwise_reload(self.model_runner.model)
                self.is_loading = True
            update(self, *args, **kwargs)

    return begun


def _packed(self):
    import torch
    from vllm.config import set_current_vllm_config
    from vllm.model_executor.model_loader import reload

    with set_current_vllm_config(self.vllm_config), torch.no_grad():
        reload.finalize_layerwise_reload(self.model_runner.model, self.model_config)
    self.is_loading = False
