"""The tiny Qwen2 without a tokenizer and with tied embeddings, for tests that send token ids."""

import os
from pathlib import Path

SETTINGS = {
    "skip_tokenizer_init": True,
    "enforce_eager": True,
    "dtype": "float32",
    "max_model_len": 256,
    "max_num_seqs": 8,
    "seed": 0,
}
PROMPT = {"prompt_token_ids": [5, 17, 42, 99, 7]}


def build(folder: Path) -> str:
    """Write the model to ``folder``; the same bytes each time."""
    from rayguard.testing import tiny_qwen

    return str(tiny_qwen.build(folder, tied=True, spread=0.2))


def environment() -> dict[str, str]:
    """What vLLM needs around it on a small machine without a network."""
    return {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "RAY_AUTH_MODE": "disabled",
    }


def look(queue) -> None:
    """Tell what a process forked from the prefork server is like; run its OpenMP pool once."""
    import sys

    told = {"imported": "vllm.v1.engine.core" in sys.modules}
    import torch
    import vllm.plugins

    told["plugins_loaded"] = vllm.plugins.plugins_loaded
    told["cuda"] = torch.cuda.is_initialized()
    torch.set_num_threads(2)
    told["parallel_sum"] = torch.ones(1_000_000).sum().item()
    queue.put(told)
