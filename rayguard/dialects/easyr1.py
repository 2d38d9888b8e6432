"""EasyR1: ``python3 -m verl.trainer.main config=FILE section.key=value ...`` (OmegaConf's dotlist).

Defaults, then the file, then the command line (verl/trainer/main.py). Written against EasyR1 0.3.2 to main of
2026.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rayguard.dialects.dialect import Changed, CheckpointPlace, Command
from rayguard.dialects.dotlist import put, said_of, text_at, word_of
from rayguard.dialects.job_settings import JobSettings, settings_of
from rayguard.dialects.spelling import KEPT, ON_RAY, positive, sort_out, steps
from rayguard.dialects.values import flat, read_yaml
from rayguard.dialects.words import folder_at, lies_in

if TYPE_CHECKING:
    from collections.abc import Mapping
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
    "enforce_eager": "worker.rollout.enforce_eager",
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
    "enforce_eager": False,
    "gpu_memory_utilization": 0.6,
}
_TRAINER: Mapping[str, object] = {
    "trainer.project_name": "easy_r1",
    "trainer.experiment_name": "demo",
    "trainer.save_freq": -1,
    "trainer.save_limit": -1,
    "trainer.find_last_checkpoint": True,
}
_SAVE, _LOAD = "trainer.save_checkpoint_path", "trainer.load_checkpoint_path"
_USUAL = "checkpoints/${trainer.project_name}/${trainer.experiment_name}"
_STEPS = "global_step_*"
_LORA, _DTYPE = "worker.actor.model.lora.rank", "worker.actor.fsdp.torch_dtype"


class EasyR1:
    """EasyR1's command line."""

    name = "EasyR1"

    def speaks(self, command: Command) -> bool:
        """Say whether a command starts EasyR1; ``verl.trainer.main_ppo`` is verl's."""
        return MODULE in command.words

    def settings(self, command: Command) -> JobSettings:
        """Return the settings of a command.

        Raises:
            ConfigError: Its file cannot be read, or a value is none for its key.
        """
        found = _found(command)
        given: dict[str, object] = dict(_DEFAULTS)
        for name, key in NAMES.items():
            if found.get(key) is not None:
                given[name] = found[key]
        if "reference_offload" not in given and not found.get("algorithm.disable_kl"):
            given["reference_offload"] = False
        given |= {"adapter": positive(found.get(_LORA)), "train_dtype": found.get(_DTYPE)}
        return settings_of(
            {**given, "framework": self.name, "launcher": "ray", "colocated": True}, spelled=NAMES
        )

    def write(self, name: str, value: object) -> str:
        """Return a setting as it stands on EasyR1's command line."""
        return word_of(NAMES.get(name, name), value)

    def with_settings(self, command: Command, settings: Mapping[str, object]) -> Changed:
        """Return the command with these settings, by plain names, for what stands there.

        Raises:
            ConfigError: There is no such setting, or its value is none for it.
        """
        values, refused = sort_out(settings, NAMES, _why_not)
        return put(command, _start(command), values, refused=refused)

    def checkpoints(self, command: Command) -> CheckpointPlace | None:
        """Return where its checkpoints lie."""
        values = {**_TRAINER, **_found(command)}
        folder = _folder(command, values)
        if folder is None:
            return None
        return CheckpointPlace(
            folder=folder,
            pattern=_STEPS,
            saves=positive(values["trainer.save_freq"]) and not values.get("trainer.save_model_only"),
            resumes_newest=values["trainer.find_last_checkpoint"] is True and not values.get(_LOAD),
        )

    def resumed(self, command: Command, checkpoint: Path | None) -> Changed:
        """Return the command that goes on from ``checkpoint``; None: from where its user began."""
        if checkpoint is not None:
            return put(command, _start(command), {_LOAD: str(checkpoint)})
        found = _found(command)
        load = found.get(_LOAD)
        own = load and lies_in(_folder(command, {**_TRAINER, **found}), folder_at(command, str(load)))
        anew: dict[str, object] = {"trainer.find_last_checkpoint": False}
        return put(command, _start(command), {**anew, _LOAD: None} if own else anew)

    def saving(self, command: Command, every: int) -> Changed:
        """Return the command with a checkpoint every ``every`` steps.

        Raises:
            ConfigError: ``every`` is no number of steps.
        """
        values = {**_TRAINER, **_found(command)}
        if values.get("trainer.save_model_only"):
            why = "trainer.save_model_only=true: EasyR1 cannot go on from a checkpoint without its optimizer"
            return Changed(command=command, refused={"saving": why})
        written: dict[str, object] = {"trainer.save_freq": steps(every)}
        # A limit takes what lies there from before, too.
        folder = _folder(command, values)
        if folder is not None and values["trainer.save_limit"] == -1 and not any(folder.glob(_STEPS)):
            written["trainer.save_limit"] = KEPT
        return put(command, _start(command), written)


EASYR1 = EasyR1()


def _start(command: Command) -> int:
    return command.words.index(MODULE) + 1


def _found(command: Command) -> dict[str, object]:
    """Return what a command and its file set, by EasyR1's keys."""
    said = said_of(command.words[_start(command) :])
    config = said.pop("config", None)
    kept = flat(read_yaml(command.folder / str(config))) if config else {}
    return {**kept, **said}


def _folder(command: Command, values: Mapping[str, object]) -> Path | None:
    told = text_at({**values, _SAVE: values.get(_SAVE) or _USUAL}, _SAVE)
    return None if told is None else folder_at(command, told)


def _why_not(name: str, _value: object) -> str:
    if name in NAMES:
        return ""
    if name == "launcher":
        return ON_RAY
    if name in ("max_num_seqs", "enable_prefix_caching", "async_scheduling"):
        return f"EasyR1 hands no {name} to its engine, nor other arguments of it"
    return f"EasyR1 has no setting for {name}"
