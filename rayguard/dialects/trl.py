"""TRL: ``trl grpo --option value ...``, and scripts of its users' own that take the options of its trainers.

A script is one of TRL where it imports it, or is given options that only TRL has. What its text never names
cannot be set by an option: that is refused, and so is a checkpoint that it would not read. Written against
0.29 to 1.16 of TRL, whose own scripts read which checkpoint to go on from in the newest versions only.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from rayguard.dialects import options
from rayguard.dialects.arguments import put, unfolded, variables_of
from rayguard.dialects.dialect import Changed, CheckpointPlace, Command
from rayguard.dialects.hf_trainer import (
    CHECKPOINTS,
    RESUME,
    saves,
    saving_options,
    why_not_saving,
)
from rayguard.dialects.job_settings import JobSettings, settings_of
from rayguard.dialects.options import LAUNCHING, TRUE, given_by, shown_to
from rayguard.dialects.script import own_at, script_start, script_text, with_accelerate
from rayguard.dialects.spelling import sort_out
from rayguard.dialects.values import read_yaml
from rayguard.dialects.words import folder_at, lies_in, option_texts_of, options_of, program_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

_NAMES = {
    "vllm_mode": "vllm_mode",
    "gpu_memory_utilization": "vllm_gpu_memory_utilization",
    "max_model_len": "vllm_max_model_length",
    "tensor_parallel": "vllm_tensor_parallel_size",
    "sleep": "vllm_enable_sleep_mode",
    "answers": "num_generations",
    "response_tokens": "max_completion_length",
    "micro_update": "per_device_train_batch_size",
}
_OF_ENGINE = frozenset(
    {
        "gpu_memory_utilization",
        "max_model_len",
        "tensor_parallel",
        "max_num_seqs",
        "max_num_batched_tokens",
        "chunked_prefill",
        "enable_prefix_caching",
        "async_scheduling",
        "enforce_eager",
    }
)
_SAMPLING = ("grpo", "rloo")
_COMMANDS = (*_SAMPLING, "sft", "dpo", "kto", "reward")
_MARKS = frozenset({"use_vllm", "vllm_mode", "num_generations", "vllm_server_base_url", "vllm_server_host"})
_IMPORTS = re.compile(r"^\s*(?:from|import) trl\b", re.MULTILINE)
_ON_RAY = re.compile(r"^\s*(?:from|import) ray\b", re.MULTILINE)
_PARSERS = ("HfArgumentParser", "TrlParser")


class Trl:
    """TRL's command line, and those of scripts that use it."""

    name = "TRL"

    def speaks(self, command: Command) -> bool:
        """Say whether a command trains with TRL, as far as it and its script tell."""
        words = command.words
        if program_of(words)[0] == "trl":
            return words[1:2] != () and words[1] in _COMMANDS
        start = script_start(words)
        if start is None:
            return False
        text = script_text(command) or ""
        if _IMPORTS.search(text):
            return True
        return not _MARKS.isdisjoint(options_of(words[start:])) and not _ON_RAY.search(text)

    def settings(self, command: Command) -> JobSettings:
        """Return the settings of a command.

        Raises:
            ConfigError: A file that it names cannot be read, or a value is none for its option.
        """
        words, environment = _said(command)
        given = given_by(words, environment, swift=False)
        said = options_of(words[own_at(words) :])
        for name, option in _NAMES.items():
            if name not in ("vllm_mode", "sleep") and said.get(option) not in (None, "None"):
                given[name] = said[option]
        if given.get("vllm_mode") == "server":
            given.pop("tensor_parallel", None)  # the server's own command says it
        if program_of(words)[0] == "trl":
            given["launcher"] = "accelerate"
        elif _ON_RAY.search(script_text(command) or ""):
            given["launcher"] = None  # its trainers may be actors, a GPU each
        spelled = {name: f"--{option}" for name, option in _NAMES.items()}
        return settings_of({**given, "framework": self.name}, spelled=spelled)

    def write(self, name: str, value: object) -> str:
        """Return a setting as an option, or as a variable."""
        return options.write(_NAMES.get(name, name), value)

    def with_settings(self, command: Command, settings: Mapping[str, object]) -> Changed:
        """Return the command with these settings, by plain names, for what stands there.

        Raises:
            ConfigError: There is no such setting, or its value is none for it.
        """
        words, environment = _said(command)
        mode = settings.get("vllm_mode", options_of(words).get("vllm_mode"))
        launcher = given_by(words, environment, swift=False)["launcher"]

        def why_not(name: str, value: object) -> str:
            if name == "gpus":
                return ""
            if name == "launcher":
                return _why_no_launcher(command.words, launcher, value)
            if name in _OF_ENGINE and mode == "server":
                return "with a server, it belongs to the server's own command"
            if name not in _NAMES:
                return f"TRL's trainers have no option for {name}"
            return _why_not_taken(command, _NAMES[name])

        written, refused = sort_out(settings, _NAMES, why_not)
        launched = command
        if settings.get("launcher") == "accelerate" and "launcher" not in refused and launcher == "python":
            launched = replace(command, words=with_accelerate(command.words))
        shown: dict[str, str] = {}
        if "gpus" in settings:
            shown["CUDA_VISIBLE_DEVICES"] = shown_to(environment, int(str(settings["gpus"])))
        changed = put(launched, own_at(launched.words), written, environment=shown, refused=refused)
        in_front = () if launched is command else ("accelerate launch",)
        return replace(changed, written=(*in_front, *changed.written))

    def checkpoints(self, command: Command) -> CheckpointPlace | None:
        """Return where its checkpoints lie; None where the command does not say it."""
        texts = _texts(command)
        folder = _folder(command, texts)
        if folder is None:
            return None
        return CheckpointPlace(folder=folder, pattern=CHECKPOINTS, saves=saves(texts), resumes_newest=False)

    def resumed(self, command: Command, checkpoint: Path | None) -> Changed:
        """Return the command that goes on from ``checkpoint``; None: from where its user began."""
        start = own_at(command.words)
        if checkpoint is not None:
            why = _why_not_resumed(command)
            if why:
                return Changed(command=command, refused={RESUME: why})
            return put(command, start, {RESUME: checkpoint})
        told = _texts(command).get(RESUME) or ""
        own = lies_in(_folder(command, _texts(command)), folder_at(command, told, home=True))
        return put(command, start, {}, out=(RESUME,)) if own or told in TRUE else Changed(command=command)

    def saving(self, command: Command, every: int) -> Changed:
        """Return the command with a checkpoint every ``every`` steps.

        Raises:
            ConfigError: ``every`` is no number of steps.
        """
        texts = _texts(command)
        folder = _folder(command, texts)
        if folder is None:
            why = "its folder of checkpoints is not known: no --output_dir"
        else:
            why = why_not_saving(texts) or _why_not_taken(command, "save_steps")
        if why:
            return Changed(command=command, refused={"saving": why})
        return put(command, own_at(command.words), saving_options(texts, every, folder))


TRL = Trl()


def _said(command: Command) -> tuple[tuple[str, ...], Mapping[str, str]]:
    """Return the words and the environment of a command, with what its file says before its own."""
    start = own_at(command.words)
    config = option_texts_of(command.words[start:]).get("config")
    own = program_of(command.words)[0] == "trl" or "TrlParser" in (script_text(command) or "")
    if config is None or not own:
        return command.words, command.environment
    kept = dict(read_yaml(command.folder / config))
    environment = variables_of(kept.pop("env", None))
    words = (*command.words[:start], *unfolded(kept), *command.words[start:])
    return words, {**command.environment, **environment}


def _texts(command: Command) -> dict[str, str | None]:
    words, _ = _said(command)
    return option_texts_of(words[own_at(words) :])


def _folder(command: Command, texts: Mapping[str, str | None]) -> Path | None:
    usual = "trainer_output" if program_of(command.words)[0] == "trl" else None
    told = texts.get("output_dir") or usual
    return None if told is None else folder_at(command, told, home=True)


def _why_no_launcher(words: Sequence[str], now: object, value: object) -> str:
    program = program_of(words)[0]
    if program == "trl":
        return "trl starts accelerate by itself"
    if value != "accelerate":
        return "TRL's scripts are started by accelerate"
    if now == "python" or now in LAUNCHING.values():
        return ""
    return f"it is not known what {program} starts: put `accelerate launch` in front of its script"


def _why_not_taken(command: Command, option: str) -> str:
    """Return why an option would do nothing; '' where it is read, as far as is known."""
    words = command.words
    if program_of(words)[0] == "trl":
        sampling = words[1] in _SAMPLING or not option.startswith(("vllm_", "num_gen", "max_comp"))
        return "" if sampling else f"trl {words[1]} samples nothing"
    text = script_text(command)
    if text is None:
        said = _MARKS | {"output_dir", *_NAMES.values()}
        return (
            ""
            if not said.isdisjoint(options_of(words[own_at(words) :]))
            else "it takes no options that are known"
        )
    if option in text or any(parser in text for parser in _PARSERS):
        return ""
    return f"{words[own_at(words) - 1]} reads no options: set {option} there"


def _why_not_resumed(command: Command) -> str:
    """Return why a checkpoint would not be read; '' where it would, as far as is known."""
    text, script = script_text(command), command.words[own_at(command.words) - 1]
    trl = program_of(command.words)[0] == "trl"
    if RESUME in (text or "") or (trl and text is None):
        return ""
    if trl:
        return f"`trl {script}` of the version that is installed does not read it: a newer one does"
    return f"{script} does not read it: write trainer.train({RESUME}=args.{RESUME}) there"
