"""A random Qwen2 of 100 000 parameters without a tokenizer, for tests that send token ids."""

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
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        vocab_size=512,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        initializer_range=0.2,
        dtype="float32",
    )
    torch.manual_seed(0)
    Qwen2ForCausalLM(config).save_pretrained(folder)
    return str(folder)


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
