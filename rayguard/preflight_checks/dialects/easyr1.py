"""EasyR1: ``python3 -m verl.trainer.main config=FILE section.key=value ...`` (OmegaConf's dotlist).

Defaults, then the file, then the command line (verl/trainer/main.py). Written against EasyR1 0.3.2 to main of
2026.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rayguard.preflight_checks.dialects.values import flat, read_yaml, value_of
from rayguard.preflight_checks.settings import JobSettings, settings_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

MODULE = "verl.trainer.main"
NAMES = {
    "prompts": "data.rollout_batch_size",
    "prompts_sampled": "data.mini_rollout_batch_size",
    "answers": "worker.rollout.n",
    "mini_batch": "worker.actor.global_batch_size",
    "micro_update": "worker.actor.micro_batch_size_per_device_for_update",
    "micro_experience": "worker.actor.micro_batch_size_per_device_for_experience",
    "prompt_tokens": "data.max_prompt_length",
    "response_tokens": "data.max_response_length",
    "gpus": "trainer.n_gpus_per_node",
    "nodes": "trainer.nnodes",
    "sequence_parallel": "worker.actor.ulysses_size",
    "tensor_parallel": "worker.rollout.tensor_parallel_size",
    "max_model_len": "worker.rollout.max_model_len",
    "max_num_batched_tokens": "worker.rollout.max_num_batched_tokens",
    "chunked_prefill": "worker.rollout.enable_chunked_prefill",
    "gpu_memory_utilization": "worker.rollout.gpu_memory_utilization",
    "model": "worker.actor.model.model_path",
    "tokenizer": "worker.actor.model.tokenizer_path",
    "full_shard": "worker.actor.fsdp.enable_full_shard",
    "offload_params": "worker.actor.offload.offload_params",
    "offload_optimizer": "worker.actor.offload.offload_optimizer",
    "reference_offload": "worker.ref.fsdp.enable_cpu_offload",
}
_DEFAULTS: Mapping[str, object] = {
    "prompts": 512,
    "answers": 1,
    "mini_batch": 256,
    "micro_update": 4,
    "micro_experience": 16,
    "prompt_tokens": 512,
    "response_tokens": 512,
    "gpus": 8,
    "nodes": 1,
    "tensor_parallel": 2,
    "max_num_batched_tokens": 8192,
    "chunked_prefill": False,
    "gpu_memory_utilization": 0.6,
}


def speaks(words: Sequence[str]) -> bool:
    """Say whether a command starts EasyR1."""
    return MODULE in words


def read(words: Sequence[str], folder: Path) -> JobSettings:
    """Return the settings of a command, run in ``folder``.

    Raises:
        ConfigError: Its file cannot be read, or a value is none for its key.
    """
    said: dict[str, Any] = {}
    for word in words[words.index(MODULE) + 1 :]:
        name, equals, value = word.partition("=")
        if equals:
            said[name.lstrip("+")] = value_of(value)
    config = said.pop("config", None)
    kept = flat(read_yaml(folder / str(config))) if config else {}
    return of_keys({**kept, **said})


def of_keys(found: Mapping[str, Any]) -> JobSettings:
    """Return settings by EasyR1's own keys, with its defaults for what is not said.

    Raises:
        ConfigError: A value is none for its key.
    """
    given: dict[str, Any] = dict(_DEFAULTS)
    for name, key in NAMES.items():
        if found.get(key) is not None:
            given[name] = found[key]
    if "reference_offload" not in given and not found.get("algorithm.disable_kl"):
        given["reference_offload"] = False
    return settings_of({**given, "framework": "EasyR1", "launcher": "ray", "colocated": True}, spelled=NAMES)


def write(name: str, value: object) -> str:
    """Return a setting as it stands on EasyR1's command line."""
    said = str(value).lower() if isinstance(value, bool) else str(value)
    return f"{NAMES.get(name, name)}={said}"
