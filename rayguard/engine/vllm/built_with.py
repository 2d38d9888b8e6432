"""What a vLLM engine was built with: settings by argument name, and the tensors of its checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rayguard.engine.weights.version import Weights
from rayguard.errors import WeightsError
from rayguard.harmless import harmless

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rayguard.engine.vllm.interfaces import VllmConfig
    from rayguard.engine.weights.layout import Layout

_FACTS = (
    (
        "scheduler_config",
        ("max_model_len", "max_num_batched_tokens", "max_num_seqs", "enable_chunked_prefill"),
    ),
    ("model_config", ("max_model_len", "enforce_eager")),
    ("cache_config", ("gpu_memory_utilization", "enable_prefix_caching")),
)


def facts(config: VllmConfig) -> Mapping[str, object]:
    """Return the settings in use."""
    found = dict[str, object]()
    for part, names in _FACTS:
        for name in names:
            value = getattr(getattr(config, part, None), name, None)
            if value is not None:
                found[name] = value
    return found


def layout(config: VllmConfig) -> Layout:
    """Return the tensors of the model's own checkpoint; none where it is not here, or quantized.

    Raises:
        WeightsError: Other engines read the same memory: what is pushed to one would change under them all.
    """
    if _maps_weights(config):
        raise WeightsError(
            "load_format='ipc_cache' maps the weights of `vllm preload` into each engine (zero_copy): a push "
            "to one would change them under all others, and in the cache. No engine was touched; build the "
            "engine with model_loader_extra_config={'mode': 'copy'}, or without load_format"
        )
    with harmless("weights"):
        folder = str(config.model_config.model)
        if config.model_config.quantization is None and any(Path(folder).glob("*.safetensors")):
            return Weights("built with", path=folder).names()
    return {}


def _maps_weights(config: VllmConfig) -> bool:
    """Say whether the weights lie in a cache of the node (vllm/model_executor/model_loader/weight_cache)."""
    load = getattr(config, "load_config", None)
    extra = getattr(load, "model_loader_extra_config", None)
    mode = extra.get("mode", "zero_copy") if isinstance(extra, dict) else "zero_copy"
    return getattr(load, "load_format", "") == "ipc_cache" and mode == "zero_copy"
