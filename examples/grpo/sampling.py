"""How the demo talks to vLLM, guarded or bare: the engine's arguments and sampling options."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rayguard.testing.fuse import fused

if TYPE_CHECKING:
    from pathlib import Path

    from examples.grpo.samples import Request

MAX_LEN = 256  # 200 tokens of prompt, 16 sampled

# vLLM on the CPU, two engines on two cores: one thread each, pinned nowhere (by default all engines pin
# themselves to the same core), and a cache of megabytes instead of gigabytes.
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    # The one function that vLLM compiles although told to be eager (it counts ranks for logprobs) costs each
    # new engine 3 s at its first request, which is more than the whole of its recovery.
    "TORCHDYNAMO_DISABLE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}


def engine_args(model_dir: str, fuse: Path) -> dict[str, Any]:
    """Return what both rollouts start vLLM with; the guard overrides some of it after a fault."""
    return {
        "model": model_dir,
        "dtype": "float32",
        "enforce_eager": True,
        "max_model_len": MAX_LEN,
        "max_num_seqs": 64,
        "max_num_batched_tokens": MAX_LEN,  # 32 prompts of 200 tokens: most are prefilled in two parts
        "kv_cache_memory_bytes": 64 << 20,
        **fused(fuse),
    }


def options_of(request: Request) -> dict[str, Any]:
    """Return vLLM's sampling options for a request."""
    options = {
        "max_tokens": request.max_tokens,
        "ignore_eos": True,
        "logprobs": 0,
    }  # of the sampled token only
    return options if request.seed is None else {**options, "seed": request.seed}
