"""ms-swift: ``swift rlhf --option value ...``, ``megatron rlhf``; a FILE.yaml or .json first is more options.

What its engine has no option for goes into ``--vllm_engine_kwargs``. Each launch makes a folder ``vN-<time>``
of its own for its checkpoints (``--add_version``), and goes on from one only where it is told which. Written
against 4.6.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from rayguard.dialects import options
from rayguard.dialects.arguments import put, unfolded, variables_of
from rayguard.dialects.dialect import Changed, CheckpointPlace, Command
from rayguard.dialects.hf_trainer import (
    CHECKPOINTS,
    MODEL_ONLY,
    RESUME,
    saves,
    saving_options,
    why_not_saving,
)
from rayguard.dialects.job_settings import JobSettings, settings_of
from rayguard.dialects.options import (
    SWIFTS_PROGRAMS,
    SWIFTS_TRAINING,
    TRUE,
    devices_of,
    given_by,
    shown_to,
)
from rayguard.dialects.script import script_start
from rayguard.dialects.spelling import sort_out
from rayguard.dialects.values import read_yaml, value_of
from rayguard.dialects.words import folder_at, lies_in, option_texts_of, options_of, program_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_NAMES = {
    "vllm_mode": "vllm_mode",
    "async_generate": "async_generate",
    "sleep": "sleep_level",
    "answers": "num_generations",
    "response_tokens": "max_completion_length",
    "micro_update": "per_device_train_batch_size",
    "gpu_memory_utilization": "vllm_gpu_memory_utilization",
    "max_model_len": "vllm_max_model_len",
    "max_num_seqs": "vllm_max_num_seqs",
    "tensor_parallel": "vllm_tensor_parallel_size",
    "enable_prefix_caching": "vllm_enable_prefix_caching",
    "enforce_eager": "vllm_enforce_eager",
}
_MEGATRON = {**_NAMES, "micro_update": "micro_batch_size"}
_KWARGS = {
    "chunked_prefill": "enable_chunked_prefill",
    "async_scheduling": "async_scheduling",
    "max_num_batched_tokens": "max_num_batched_tokens",
}
_ENGINE = "vllm_engine_kwargs"
_HOSTS = frozenset({"vllm_server_host", "vllm_server_base_url"})
_READ_APART = ("vllm_mode", "async_generate", "sleep")  # with what else tells of them
_SCRIPT = re.compile(r"(?:.*[/.])?swift[/.]cli[/.](_megatron[/.])?(?:rlhf|sft|pt)(?:\.py)?")  # a launcher's


class Swift:
    """ms-swift's command line."""

    name = "ms-swift"

    def speaks(self, command: Command) -> bool:
        """Say whether a command trains with ms-swift."""
        return _start(command) > 0

    def settings(self, command: Command) -> JobSettings:
        """Return the settings of a command.

        Raises:
            ConfigError: A file that it names cannot be read, or a value is none for its option.
        """
        words, environment = _said(command)
        given = given_by(words, environment, swift=True)
        said, names = options_of(words), _names(command)
        for name, option in names.items():
            if name not in _READ_APART and said.get(option) not in (None, "None"):
                given[name] = said[option]
        kwargs = _kwargs(words) or {}
        given |= {name: kwargs[key] for name, key in _KWARGS.items() if key in kwargs}
        if given.get("vllm_mode") == "server":
            given.pop("tensor_parallel", None)  # the server's own command says it
        return settings_of(given, spelled={name: f"--{option}" for name, option in names.items()})

    def write(self, name: str, value: object) -> str:
        """Return a setting as an option, or as a variable."""
        if name == "sleep":
            return f"--sleep_level {int(value is True)}"
        return options.write(_NAMES.get(name, name), value)

    def with_settings(self, command: Command, settings: Mapping[str, object]) -> Changed:
        """Return the command with these settings, by plain names, for what stands there.

        Raises:
            ConfigError: There is no such setting, or its value is none for it.
        """
        words, environment = _said(command)
        said, kwargs = options_of(words), _kwargs(words)
        server = settings.get("vllm_mode", said.get("vllm_mode")) == "server"
        ranks = settings.get("gpus", len(devices_of(environment)))

        def why_not(name: str, value: object) -> str:
            if name == "launcher":
                return _why_no_launcher(command, value, ranks)
            if name in _KWARGS and kwargs is None:
                return f"--{_ENGINE} is no JSON object that can be added to"
            return _why_not(name, server=server)

        written, refused = sort_out(settings, _names(command), why_not)
        if "sleep_level" in written:
            written["sleep_level"] = int(written["sleep_level"] is True)
        into = {_KWARGS[name]: settings[name] for name in _KWARGS if name in settings.keys() - refused}
        if into:
            written[_ENGINE] = json.dumps({**(kwargs or {}), **into})
        if settings.get("vllm_mode") == "server" and _HOSTS.isdisjoint(said):
            refused["vllm_server_host"] = "start a server first, by `swift rollout`, and say where it is"
        variables = {
            "launcher": ("NPROC_PER_NODE", str(ranks)),
            "gpus": ("CUDA_VISIBLE_DEVICES", shown_to(environment, int(str(ranks)))),
        }
        told = dict(variables[name] for name in variables if name in settings.keys() - refused)
        return put(command, _start(command), written, environment=told, refused=refused)

    def checkpoints(self, command: Command) -> CheckpointPlace | None:
        """Return where its checkpoints lie; None where neither a folder nor a model is named."""
        texts = _texts(command)
        folder = _folder(command, texts)
        if folder is None:
            return None
        return CheckpointPlace(
            folder=folder,
            pattern=f"v*-*/{CHECKPOINTS}" if _versioned(texts) else CHECKPOINTS,
            saves=saves(texts) and not _without_optimizer(command, texts),
            resumes_newest=False,
        )

    def resumed(self, command: Command, checkpoint: Path | None) -> Changed:
        """Return the command that goes on from ``checkpoint``; None: from where its user began."""
        texts = _texts(command)
        megatron = _on_megatron(command)
        adapter = "lora" in (texts.get("tuner_type") or "") or "mcore_adapter" in texts
        option = RESUME if not megatron else "mcore_adapter" if adapter else "mcore_model"
        if checkpoint is not None:
            further = {"finetune": False} if megatron else {}
            return put(command, _start(command), {option: checkpoint, **further})
        told = texts.get(option)
        if not told or not lies_in(_folder(command, texts), folder_at(command, told, home=True)):
            return Changed(command=command)
        return put(command, _start(command), {}, out=(option, "finetune") if megatron else (option,))

    def saving(self, command: Command, every: int) -> Changed:
        """Return the command with a checkpoint every ``every`` steps.

        Raises:
            ConfigError: ``every`` is no number of steps.
        """
        texts = _texts(command)
        why = MODEL_ONLY if _without_optimizer(command, texts) else why_not_saving(texts)
        if why:
            return Changed(command=command, refused={"saving": why})
        folder = None if _versioned(texts) else _folder(command, texts)
        return put(command, _start(command), saving_options(texts, every, folder))


SWIFT = Swift()


def _start(command: Command) -> int:
    """Return where its options begin; 0 where no training of ms-swift is started."""
    words = command.words
    if program_of(words)[0] in SWIFTS_PROGRAMS:
        return 2 if words[1:2] != () and words[1] in SWIFTS_TRAINING else 0
    own = script_start(words)
    return own if own and own <= len(words) and _SCRIPT.fullmatch(words[own - 1]) else 0


def _on_megatron(command: Command) -> bool:
    words = command.words
    by_script = _SCRIPT.fullmatch(words[_start(command) - 1])
    return program_of(words)[0] == "megatron" or bool(by_script and by_script[1])


def _names(command: Command) -> Mapping[str, str]:
    return _MEGATRON if _on_megatron(command) else _NAMES


def _said(command: Command) -> tuple[tuple[str, ...], Mapping[str, str]]:
    """Return the words and the environment of a command, its file unfolded."""
    words, start = command.words, _start(command)
    file = next(iter(words[start : start + 1]), "")
    if not file.endswith((".yaml", ".yml", ".json")):  # JSON is YAML, too
        return words, command.environment
    kept = dict(read_yaml(command.folder / file))
    environment = variables_of(kept.pop("ENV", None))
    return (*words[:start], *unfolded(kept), *words[start + 1 :]), {**environment, **command.environment}


def _texts(command: Command) -> dict[str, str | None]:
    words, _ = _said(command)
    return option_texts_of(words)


def _kwargs(words: tuple[str, ...]) -> dict[str, object] | None:
    """Return what goes to the engine as it is; None where that cannot be read."""
    text = option_texts_of(words).get(_ENGINE)
    try:
        found = json.loads(text or "{}")
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _why_not(name: str, *, server: bool) -> str:
    of_engine = name in _KWARGS or (name != "vllm_mode" and _NAMES.get(name, "").startswith("vllm_"))
    if server and of_engine:
        return "with a server, it belongs to the command of `swift rollout`"
    return "" if name in {*_NAMES, *_KWARGS, "gpus"} else f"ms-swift has no option for {name}"


def _why_no_launcher(command: Command, value: object, ranks: object) -> str:
    if program_of(command.words)[0] not in SWIFTS_PROGRAMS:
        return "a launcher belongs in front of its script"
    if value not in ("torchrun", "accelerate"):  # either: a rank for each GPU
        return "ms-swift starts torchrun itself, where NPROC_PER_NODE says how many ranks"
    return "" if ranks else "it is not known how many GPUs there are: set NPROC_PER_NODE"


def _versioned(texts: Mapping[str, str | None]) -> bool:
    return value_of(texts.get("add_version") or "true") in TRUE


def _without_optimizer(command: Command, texts: Mapping[str, str | None]) -> bool:
    return _on_megatron(command) and value_of(texts.get("no_save_optim") or "false") in TRUE


def _folder(command: Command, texts: Mapping[str, str | None]) -> Path | None:
    told, model = texts.get("output_dir"), (texts.get("model") or "").rstrip("/")
    if not told and model and "/snapshots/" not in model:
        usual = "megatron_output" if _on_megatron(command) else "output"
        told = f"{usual}/{model.rsplit('/', 1)[-1].replace('___', '.')}"
    return folder_at(command, told, home=True) if told else None
