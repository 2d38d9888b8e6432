"""OpenRLHF: ``python3 -m openrlhf.cli.train_ppo_ray --vllm_sync_backend nccl ...``, after ``ray job`` too.

Two spellings: that of 0.9 (``--vllm_num_engines``) and that of 0.10 to main of August 2026
(``--vllm.num_engines``); each command is read and changed in its own. Flags have no value: one is taken back
only by cutting it out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rayguard.dialects.arguments import option_of, put
from rayguard.dialects.dialect import Changed, CheckpointPlace, Command
from rayguard.dialects.job_settings import JobSettings, settings_of
from rayguard.dialects.spelling import ON_RAY, positive, sort_out, steps
from rayguard.dialects.values import value_of
from rayguard.dialects.words import folder_at, option_texts_of, options_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

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
    "enforce_eager": "enforce_eager",
    "enable_prefix_caching": "enable_prefix_caching",
    "gpu_memory_utilization": "vllm_gpu_memory_utilization",
    "prompts": "rollout_batch_size",
    "answers": "n_samples_per_prompt",
    "micro_experience": "micro_rollout_batch_size",
    "micro_update": "micro_train_batch_size",
    "offload_optimizer": "adam_offload",
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
    "enforce_eager": "vllm.enforce_eager",
    "enable_prefix_caching": "vllm.enable_prefix_caching",
    "gpu_memory_utilization": "vllm.gpu_memory_utilization",
    "prompts": "rollout.batch_size",
    "answers": "rollout.n_samples_per_prompt",
    "micro_experience": "rollout.micro_batch_size",
    "micro_update": "train.micro_batch_size",
    "offload_optimizer": "ds.adam_offload",
}
_SHARED_ONLY = frozenset(
    {"gpus", "nodes", "tensor_parallel"}
)  # elsewhere, the engines have GPUs of their own
_OF_ENGINES = frozenset({"enforce_eager", "enable_prefix_caching", "gpu_memory_utilization"})
_FLAGS = frozenset(
    {
        "sync_with_ray",
        "colocated",
        "async_train",
        "sleep",
        "enforce_eager",
        "enable_prefix_caching",
        "offload_optimizer",
    }
)
_USUAL = "./ckpt/checkpoints_ppo_ray"
_NO_STATE = "it was told to make none with an optimizer, and goes on from no other"


@dataclass(frozen=True, slots=True)
class OpenRlhf:
    """One of OpenRLHF's two spellings."""

    dotted: bool
    name: str = "OpenRLHF"

    def speaks(self, command: Command) -> bool:
        """Say whether a command starts OpenRLHF's trainer on Ray, in this spelling."""
        return MODULE in command.words and self.dotted == any("." in one for one in _texts(command))

    def settings(self, command: Command) -> JobSettings:
        """Return the settings of a command.

        Raises:
            ConfigError: A value is none for its option.
        """
        options = options_of(command.words[_start(command) :])
        given: dict[str, object] = {"gpus": 8, "nodes": 1, "tensor_parallel": 1}  # its defaults
        for name, option in self._names.items():
            if option in options:
                given[name] = True if name in _FLAGS else options[option]
        given["colocated"] = bool(given.get("colocated"))
        if given.get("engines") in (None, 0):  # no vLLM at all
            given = {"colocated": given["colocated"]}
        else:
            given |= {name: False for name in _OF_ENGINES & _FLAGS if name not in given}
            if not given["colocated"] or given.get("async_train"):
                given = {name: value for name, value in given.items() if name not in _SHARED_ONLY}
        spelled = {name: f"--{option}" for name, option in self._names.items()}
        return settings_of({**given, "framework": self.name, "launcher": "ray"}, spelled=spelled)

    def write(self, name: str, value: object) -> str:
        """Return a setting as it stands on OpenRLHF's command line."""
        option = self._names.get(name, name)
        if value is False:
            return f"(without --{option})"
        return f"--{option}" if name in _FLAGS else " ".join(option_of(option, value))

    def with_settings(self, command: Command, settings: Mapping[str, object]) -> Changed:
        """Return the command with these settings, by plain names, for what stands there.

        Raises:
            ConfigError: There is no such setting, or its value is none for it.
        """
        options, refused = sort_out(settings, self._names, self._why_not)
        flags = {self._names[name] for name in _FLAGS}
        return put(command, _start(command), options, flags=flags, refused=refused)

    def checkpoints(self, command: Command) -> CheckpointPlace | None:
        """Return where its checkpoints lie; None where it is submitted, into a folder of the job."""
        texts = _texts(command)
        folder = folder_at(command, texts.get(self._path) or _USUAL)
        if folder is None:
            return None
        return CheckpointPlace(
            folder=folder / "_actor",
            pattern="global_step*",
            saves=positive(value_of(texts.get(self._steps) or "-1")) and self._no_state not in texts,
            resumes_newest=self._load in texts,
        )

    def resumed(self, command: Command, checkpoint: Path | None) -> Changed:
        """Return the command that goes on from ``checkpoint``, if that is the newest: it takes no other."""
        start = _start(command)
        if checkpoint is None:
            return put(command, start, {self._load: False}, flags=(self._load,))
        newest = _newest(checkpoint.parent)
        if newest != checkpoint.name:
            why = f"OpenRLHF loads the newest in {checkpoint.parent} and no other: {newest or 'none'}"
            return Changed(command=command, refused={self._load: why})
        return put(command, start, {self._load: True}, flags=(self._load,))

    def saving(self, command: Command, every: int) -> Changed:
        """Return the command with a checkpoint every ``every`` steps; it keeps three, unless told otherwise.

        Raises:
            ConfigError: ``every`` is no number of steps.
        """
        if self._no_state in _texts(command):
            return Changed(command=command, refused={"saving": f"--{self._no_state}: {_NO_STATE}"})
        return put(command, _start(command), {self._steps: steps(every)})

    @property
    def _names(self) -> Mapping[str, str]:
        return _NEW if self.dotted else _OLD

    @property
    def _path(self) -> str:
        return "ckpt.path" if self.dotted else "ckpt_path"

    @property
    def _steps(self) -> str:
        return "ckpt.save_steps" if self.dotted else "save_steps"

    @property
    def _load(self) -> str:
        return "ckpt.load_enable" if self.dotted else "load_checkpoint"

    @property
    def _no_state(self) -> str:
        return "ckpt.disable_ds" if self.dotted else "disable_ds_ckpt"

    def _why_not(self, name: str, _value: object) -> str:
        if name in self._names:
            return ""
        if name == "launcher":
            return ON_RAY
        return f"OpenRLHF has no option for {name}"


OPENRLHF = (OpenRlhf(dotted=False), OpenRlhf(dotted=True))


def _start(command: Command) -> int:
    return command.words.index(MODULE) + 1


def _texts(command: Command) -> dict[str, str | None]:
    return option_texts_of(command.words[_start(command) :])


def _newest(folder: Path) -> str | None:
    """Return which checkpoint DeepSpeed would load."""
    try:
        return (folder / "latest").read_text().strip()
    except (OSError, UnicodeDecodeError):
        return None
