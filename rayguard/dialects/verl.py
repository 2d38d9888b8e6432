"""verl: ``python3 -m verl.trainer.main_ppo section.key=value ...`` (Hydra), and what takes the same keys.

That is ``main_ppo_v0``, and the trainers with rollouts apart (``fully_async_main``, ``one_step_off_policy``).
Its defaults are read from the package that would run, a checkout in the command's folder or an installed one,
without importing it; where neither is there, they are those of 0.8 to main of 2026. A file of a user's own
(``--config-path``) is read where its folder is absolute: Hydra looks for others beside verl's own code.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from rayguard.dialects.dialect import Changed, CheckpointPlace, Command
from rayguard.dialects.dotlist import put, said_of, text_at, word_of
from rayguard.dialects.job_settings import JobSettings, settings_of
from rayguard.dialects.script import package_folder
from rayguard.dialects.spelling import KEPT, ON_RAY, positive, sort_out, steps
from rayguard.dialects.values import flat, read_yaml
from rayguard.dialects.words import folder_at, lies_in

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# Rollouts apart from the trainer, by the same keys: what a batch is there, and on how many GPUs, is not read.
_APART = (
    "verl.experimental.fully_async_policy.fully_async_main",
    "verl.experimental.one_step_off_policy.main_ppo",
)
MODULES = ("verl.trainer.main_ppo", "verl.trainer.main_ppo_v0", *_APART)
_OF_BATCHES = ("prompts", "answers", "mini_batch", "micro_update", "micro_experience", "gpus", "nodes")
_ROLLOUT, _ACTOR = "actor_rollout_ref.rollout", "actor_rollout_ref.actor"
NAMES = {
    "prompts": "data.train_batch_size",
    "answers": f"{_ROLLOUT}.n",
    "mini_batch": f"{_ACTOR}.ppo_mini_batch_size",
    "micro_update": f"{_ACTOR}.ppo_micro_batch_size_per_gpu",
    "micro_experience": f"{_ROLLOUT}.log_prob_micro_batch_size_per_gpu",
    "prompt_tokens": "data.max_prompt_length",
    "response_tokens": "data.max_response_length",
    "gpus": "trainer.n_gpus_per_node",
    "nodes": "trainer.nnodes",
    "sequence_parallel": f"{_ACTOR}.ulysses_sequence_parallel_size",
    "tensor_parallel": f"{_ROLLOUT}.tensor_model_parallel_size",
    "max_model_len": f"{_ROLLOUT}.max_model_len",
    "max_num_batched_tokens": f"{_ROLLOUT}.max_num_batched_tokens",
    "max_num_seqs": f"{_ROLLOUT}.max_num_seqs",
    "chunked_prefill": f"{_ROLLOUT}.enable_chunked_prefill",
    "enable_prefix_caching": f"{_ROLLOUT}.enable_prefix_caching",
    "async_scheduling": f"++{_ROLLOUT}.engine_kwargs.vllm.async_scheduling",
    "enforce_eager": f"{_ROLLOUT}.enforce_eager",
    "gpu_memory_utilization": f"{_ROLLOUT}.gpu_memory_utilization",
    "model": "actor_rollout_ref.model.path",
    "offload_params": f"{_ACTOR}.fsdp_config.param_offload",
    "offload_optimizer": f"{_ACTOR}.fsdp_config.optimizer_offload",
    "reference_offload": "actor_rollout_ref.ref.fsdp_config.param_offload",
}
_DEFAULTS: Mapping[str, object] = {
    "data.train_batch_size": 1024,
    f"{_ROLLOUT}.n": 1,
    f"{_ACTOR}.ppo_mini_batch_size": 256,
    "data.max_prompt_length": 512,
    "data.max_response_length": 512,
    "trainer.n_gpus_per_node": 8,
    "trainer.nnodes": 1,
    f"{_ROLLOUT}.tensor_model_parallel_size": 2,
    f"{_ROLLOUT}.max_num_batched_tokens": 8192,
    f"{_ROLLOUT}.max_num_seqs": 256,
    f"{_ROLLOUT}.enable_chunked_prefill": True,
    f"{_ROLLOUT}.enable_prefix_caching": True,
    f"{_ROLLOUT}.enforce_eager": False,
    f"{_ROLLOUT}.gpu_memory_utilization": 0.5,
    "trainer.project_name": "verl_examples",
    "trainer.experiment_name": "gsm8k",
    "trainer.save_freq": -1,
    "trainer.resume_mode": "auto",
    "trainer.default_local_dir": "checkpoints/${trainer.project_name}/${trainer.experiment_name}",
}
_FOLDER, _FROM = "trainer.default_local_dir", "trainer.resume_from_path"
_MODE, _DELETES = "trainer.resume_mode", "trainer.del_local_ckpt_after_load"
_LIMITS = ("trainer.max_actor_ckpt_to_keep", "trainer.max_critic_ckpt_to_keep")
_LORA = ("actor_rollout_ref.model.lora_rank", "actor_rollout_ref.model.lora.rank")
_FLAGS = {"-cp": "--config-path", "-cn": "--config-name"}


class Verl:
    """verl's command line."""

    name = "verl"

    def speaks(self, command: Command) -> bool:
        """Say whether a command starts verl's PPO trainer; ``verl.trainer.main`` is EasyR1's."""
        return any(module in command.words for module in MODULES)

    def settings(self, command: Command) -> JobSettings:
        """Return the settings of a command.

        Raises:
            ConfigError: A file that it names cannot be read, or a value is none for its key.
        """
        said = _said(command)
        found = {**_defaults(command), **said}
        given: dict[str, object] = {}
        for name, key in NAMES.items():
            value = found.get(key.lstrip("+"))
            if value is not None and "${" not in str(value):
                given[name] = value
        megatron = found.get(f"{_ACTOR}.strategy") == "megatron"
        if megatron or NAMES["model"] not in said:  # its own default is a folder that nobody has
            given.pop("model", None)
        if not (found.get(f"{_ACTOR}.use_kl_loss") or found.get("algorithm.use_kl_in_reward")):
            given.pop("reference_offload", None)  # there is no reference
        other = not {*_APART}.isdisjoint(command.words)
        given["adapter"] = any(positive(found.get(key)) for key in _LORA)
        given["train_dtype"] = found.get(f"{_ACTOR}.fsdp_config.model_dtype")
        apart = other or found.get("trainer.v1.trainer_mode") == "separate_async"
        if other:
            given = {name: value for name, value in given.items() if name not in _OF_BATCHES}
        given |= {"framework": self.name, "launcher": "ray", "colocated": not apart}
        return settings_of(given, spelled={name: key.lstrip("+") for name, key in NAMES.items()})

    def write(self, name: str, value: object) -> str:
        """Return a setting as it stands on verl's command line."""
        return word_of(NAMES.get(name, name), value)

    def with_settings(self, command: Command, settings: Mapping[str, object]) -> Changed:
        """Return the command with these settings, by plain names, for what stands there.

        Raises:
            ConfigError: There is no such setting, or its value is none for it.
        """
        there, said = _package_defaults(command), _said(command)
        engine = said.get(f"{_ROLLOUT}.name", "vllm")

        def why_not(name: str, _value: object) -> str:
            if name == "launcher":
                return ON_RAY
            if name not in NAMES:
                return f"verl has no setting for {name}"
            key = NAMES[name]
            if ".vllm." in key and engine != "vllm":
                return f"its engine is {engine}, which has no {name}"
            gone = there and not key.startswith("++") and key not in {**there, **said}
            return f"this version of verl has no {key}" if gone else ""

        values, refused = sort_out(settings, NAMES, why_not)
        return put(command, _start(command), values, refused=refused)

    def checkpoints(self, command: Command) -> CheckpointPlace | None:
        """Return where its checkpoints lie."""
        values = {**_defaults(command), **_said(command)}
        folder = _folder(command, values)
        if folder is None:
            return None
        untold = values.get(f"{_ACTOR}.checkpoint.async_save") is True  # the newest is written nowhere then
        return CheckpointPlace(
            folder=folder,
            pattern="global_step_*",
            saves=positive(values.get("trainer.save_freq")),
            resumes_newest=values.get(_MODE) == "auto" and not untold,
        )

    def resumed(self, command: Command, checkpoint: Path | None) -> Changed:
        """Return the command that goes on from ``checkpoint``; None: from where its user began."""
        values = {**_defaults(command), **_said(command)}
        written: dict[str, object]
        if checkpoint is not None:
            written = {_MODE: "resume_path", _FROM: str(checkpoint)}
            if values.get(_DELETES):  # a second failure would find nothing
                written[_DELETES] = False
            return put(command, _start(command), written)
        told = values.get(_FROM)
        given = told is not None and values.get(_MODE) == "resume_path"
        if given and not lies_in(_folder(command, values), folder_at(command, str(told))):
            return Changed(command=command)
        return put(command, _start(command), {_MODE: "disable"}, out=(_FROM,))

    def saving(self, command: Command, every: int) -> Changed:
        """Return the command with a checkpoint every ``every`` steps.

        Raises:
            ConfigError: ``every`` is no number of steps.
        """
        values = {**_defaults(command), **_said(command)}
        written: dict[str, object] = {"trainer.save_freq": steps(every)}
        if not positive(values.get("trainer.save_freq")):  # it counts those of its own process only
            written |= {limit: KEPT for limit in _LIMITS if values.get(limit) is None}
        return put(command, _start(command), written)


VERL = Verl()


def _start(command: Command) -> int:
    return next(at for at, word in enumerate(command.words) if word in MODULES) + 1


def _said(command: Command) -> dict[str, object]:
    """Return what a command and a file of its user's own set, by verl's keys."""
    words = command.words[_start(command) :]
    config = _flag(words, "--config-path")
    kept: dict[str, object] = {}
    if config is not None and Path(config).is_absolute():
        name = _flag(words, "--config-name") or "ppo_trainer"
        kept = flat(read_yaml(Path(config) / f"{name.removesuffix('.yaml')}.yaml"))
    return {**kept, **said_of(words)}


def _flag(words: Sequence[str], flag: str) -> str | None:
    for at, word in enumerate(words):
        name, equals, value = word.partition("=")
        if _FLAGS.get(name, name) == flag:
            return value if equals else next(iter(words[at + 1 : at + 2]), None)
    return None


def _defaults(command: Command) -> dict[str, object]:
    return {**_DEFAULTS, **_package_defaults(command)}


def _package_defaults(command: Command) -> Mapping[str, object]:
    """Return the defaults of the verl that would run; empty where it is not there (EasyR1 is of its name)."""
    words = command.words[_start(command) :]
    named = None if _flag(words, "--config-path") else _flag(words, "--config-name")
    name = f"_generated_{(named or 'ppo_trainer').removesuffix('.yaml')}.yaml"
    for folder in (command.folder / "verl", package_folder("verl")):
        path = folder and folder / "trainer" / "config" / name
        if path and path.is_file():
            return _read(path)
    return {}


@lru_cache(maxsize=4)
def _read(path: Path) -> Mapping[str, object]:
    return flat(read_yaml(path))


def _folder(command: Command, values: Mapping[str, object]) -> Path | None:
    told = text_at(values, _FOLDER)
    return None if told is None else folder_at(command, told)
