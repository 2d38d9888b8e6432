"""How the demo talks to vLLM: the engine's arguments, and requests in, samples out.

The same for the guarded and the bare rollout: both hand in an engine with vLLM's own ``generate``.
"""

# ruff: noqa: PLC0415 - heavy libraries are imported where they are used: the driver does without them

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from examples.grpo.samples import Sample
from rayguard.testing.fuse import fused

if TYPE_CHECKING:
    from collections.abc import Sequence
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


async def sample(engine: Any, requests: Sequence[Request]) -> list[Sample]:
    """Sample all ``requests`` at once; the samples come back in their order."""
    return list(await asyncio.gather(*(_sample(engine, request) for request in requests)))


async def _sample(engine: Any, request: Request) -> Sample:
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    params = SamplingParams(
        seed=request.seed,
        max_tokens=request.max_tokens,
        ignore_eos=True,
        logprobs=0,  # of the sampled token only
        output_kind=RequestOutputKind.FINAL_ONLY,
    )
    prompt = {"prompt_token_ids": list(request.prompt)}
    async for output in engine.generate(prompt, params, request.id):
        last = output
    return _read(last, request)


def _read(output: Any, request: Request) -> Sample:
    completion = output.outputs[0]
    tokens = tuple(completion.token_ids)
    return Sample(
        id=request.id,
        prompt=request.prompt,
        tokens=tokens,
        logprobs=tuple(
            entry[token].logprob for token, entry in zip(tokens, completion.logprobs, strict=True)
        ),
        # vLLM notes which version made which tokens; a push between two tokens would show as two spans.
        weight_version="+".join(span.version for span in completion.weight_versions or ()),
    )
