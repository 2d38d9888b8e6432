"""OpenRLHF: ``python3 -m openrlhf.cli.train_ppo_ray --vllm_sync_backend nccl ...``, after ``ray job`` too.

Only what says how weights get to the engines. Written against 0.9 (``--vllm_num_engines``) and main of August
2026 (``--vllm.num_engines``); what is corrected is spelled as the command spells.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rayguard.preflight_checks.dialects.words import options_of
from rayguard.preflight_checks.settings import JobSettings, settings_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

MODULE = "openrlhf.cli.train_ppo_ray"
_OLD = {
    "weight_sync": "vllm_sync_backend",
    "sync_with_ray": "vllm_sync_with_ray",
    "colocated": "colocate_all_models",
    "async_train": "async_train",
    "sleep": "vllm_enable_sleep",
    "engines": "vllm_num_engines",
    "tensor_parallel": "vllm_tensor_parallel_size",
    "gpus": "actor_num_gpus_per_node",
    "nodes": "actor_num_nodes",
}
_NEW = {
    "weight_sync": "vllm.sync_backend",
    "sync_with_ray": "vllm.sync_with_ray",
    "colocated": "train.colocate_all",
    "async_train": "train.async_enable",
    "sleep": "vllm.enable_sleep",
    "engines": "vllm.num_engines",
    "tensor_parallel": "vllm.tensor_parallel_size",
    "gpus": "actor.num_gpus_per_node",
    "nodes": "actor.num_nodes",
}
_SHARED_ONLY = frozenset(
    {"gpus", "nodes", "tensor_parallel"}
)  # elsewhere, the engines have GPUs of their own
_FLAGS = frozenset({"sync_with_ray", "colocated", "async_train", "sleep"})


def speaks(words: Sequence[str]) -> bool:
    """Say whether a command starts OpenRLHF's trainer on Ray."""
    return MODULE in words


def read(words: Sequence[str]) -> JobSettings:
    """Return the settings of a command.

    Raises:
        ConfigError: A value is none for its option.
    """
    options = options_of(words[words.index(MODULE) + 1 :])
    names = _NEW if any("." in name for name in options) else _OLD
    given: dict[str, object] = {"gpus": 8, "nodes": 1, "tensor_parallel": 1}  # its defaults
    for name, option in names.items():
        if option in options:
            given[name] = True if name in _FLAGS else options[option]
    given["colocated"] = bool(given.get("colocated"))
    if given.get("engines") in (None, 0):  # no vLLM at all
        given = {"colocated": given["colocated"]}
    elif not given["colocated"] or given.get("async_train"):
        given = {name: value for name, value in given.items() if name not in _SHARED_ONLY}
    spelled = {name: f"--{option}" for name, option in names.items()}
    return settings_of({**given, "framework": "OpenRLHF", "launcher": "ray"}, spelled=spelled)


def writer(job: JobSettings) -> Callable[[str, object], str]:
    """Return how a setting is written: as this command spells it."""

    def write(name: str, value: object) -> str:
        option = job.name(name)
        return f"(without {option})" if value is False else f"{option} {value}"

    return write
