"""Loaded as each Python of a check begins: lets EasyR1 run on a CPU.

EasyR1 itself is not changed: its workers, which need CUDA and vLLM, are replaced by those in ``fsdp_workers``, and
modules that are not there by empty ones.
"""

import importlib.machinery
import importlib.util
import os
import sys
from pathlib import Path

_HERE = Path(__file__).parent
_INSTEAD = {
    "verl.workers.fsdp_workers": "fsdp_workers.py",
    "verl.workers.rollout.vllm_rollout_spmd": "absent.py",
    "qwen_vl_utils": "absent.py",
    "qwen_vl_utils.vision_process": "absent.py",
}


class _Instead:
    @staticmethod
    def find_spec(name, path=None, target=None):
        file = _INSTEAD.get(name)
        if file is None:
            return None
        return importlib.util.spec_from_file_location(
            name, _HERE / file, submodule_search_locations=[] if name == "qwen_vl_utils" else None
        )


def _no_gpu(module):
    module.torch.cuda.get_device_name = lambda *_: "none"


if os.environ.get("EASYR1_CPU"):
    sys.meta_path.insert(0, _Instead)
    from rayguard.frameworks.after_import import after_import

    after_import("verl.single_controller.base.worker", _no_gpu)
