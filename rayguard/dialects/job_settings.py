"""The settings of a job in plain words, whichever framework it is for; None is what nobody said.

How each framework spells them is its own file's beside this one.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from rayguard.errors import ConfigError
from rayguard.options import meant


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSettings:
    """What checks look at. ``spelled`` has the framework's own name of a setting, by the name here."""

    # A step
    prompts: int | None = None  # of one step
    answers: int = 1  # to each prompt
    mini_batch: int | None = None  # prompts of one optimizer step
    micro_update: int | None = None  # rows of a rank's micro-batch in the update
    micro_experience: int | None = None  # the same for log-probabilities
    prompts_sampled: int | None = None  # of one call to the rollouts, where that is less than a step
    prompt_tokens: int | None = None  # the longest
    response_tokens: int | None = None
    # Where it runs
    gpus: int | None = None  # a node
    nodes: int = 1
    sequence_parallel: int = 1  # ranks that share the tokens of a row
    gpu_bytes: int | None = None  # of memory, each
    host_bytes: int | None = None  # of memory, a node
    # The engine
    tensor_parallel: int = 1
    max_model_len: int | None = None
    max_num_batched_tokens: int | None = None
    max_num_seqs: int | None = None
    chunked_prefill: bool | None = None
    enable_prefix_caching: bool | None = None
    async_scheduling: bool | None = None
    enforce_eager: bool | None = None
    gpu_memory_utilization: float | None = None
    vllm_mode: str | None = None  # "server" or "colocate"
    async_generate: bool = False
    async_train: bool = False  # the trainer trains while they sample
    engines: int | None = None  # of tensor_parallel GPUs each
    sleep: bool = False  # it gives its memory up while the trainer trains
    # How weights get from the trainer to it
    weight_sync: str | None = None  # the framework's word: "nccl", "gloo" ...
    sync_with_ray: bool = False  # by Ray's collectives (OpenRLHF)
    colocated: bool | None = None  # trainer and engine share each GPU; None: not known, counted as shared
    local_server: bool | None = None  # the server runs on this machine
    on_cpu: bool = False  # the trainer uses no GPU
    trainer_devices: str | None = None  # GPUs that its processes see: "0,1"
    engine_devices: str | None = None
    # Where something will listen on this machine, by the name of the setting; 0: on any port that is free
    ports: Mapping[str, int] = field(default_factory=dict)
    worker_ports: tuple[int, int] | None = None  # Ray's workers listen on these: first and last
    # The model
    model: str | None = None  # a folder, or a name that lies in the Hugging Face cache
    tokenizer: str | None = None  # the same, where it is not the model's
    adapter: bool = False  # only that is trained (LoRA)
    train_dtype: str | None = None  # of the parameters that are trained: "bf16"; None: 32 bits
    full_shard: bool = True
    offload_params: bool = False
    offload_optimizer: bool = False
    reference_offload: bool | None = None  # None: there is no reference model
    launcher: str | None = None  # "ray", "torchrun", "accelerate", "deepspeed", "python"; None: not known
    spelled: Mapping[str, str] = field(default_factory=dict)
    framework: str = ""

    @property
    def world(self) -> int | None:
        """How many ranks train."""
        return None if self.gpus is None else self.gpus * self.nodes

    @property
    def tokens(self) -> int | None:
        """How long a prompt with its answer may be."""
        if self.prompt_tokens is None or self.response_tokens is None:
            return None
        return self.prompt_tokens + self.response_tokens

    def name(self, setting: str) -> str:
        """Return what the user calls a setting."""
        return self.spelled.get(setting, setting)


_KINDS = {one.name: str(one.type).removesuffix(" | None") for one in dataclasses.fields(JobSettings)}
_MAY_BE_NONE = frozenset(
    one.name for one in dataclasses.fields(JobSettings) if str(one.type).endswith(" | None")
)
_MAY_BE_ZERO = frozenset({"response_tokens"})
_MOST = {"micro_update": 10_000, "micro_experience": 10_000, "gpu_bytes": 1 << 50, "host_bytes": 1 << 60}
_MOST_OF_OTHERS = 100_000_000
LAST_PORT = 65_535


def settings_of(given: Mapping[str, object], *, spelled: Mapping[str, str] | None = None) -> JobSettings:
    """Return settings by their plain names, checked one by one.

    Raises:
        ConfigError: There is no such setting, or it is of another kind.
    """
    spelled = spelled or {}
    return JobSettings(**checked(given, spelled), spelled=spelled)  # type: ignore[arg-type]


def checked(given: Mapping[str, object], spelled: Mapping[str, str]) -> dict[str, object]:
    """Return settings by their plain names, each as it is kept.

    Raises:
        ConfigError: There is no such setting, or it is of another kind.
    """
    known = [one.name for one in dataclasses.fields(JobSettings) if one.name != "spelled"]
    taken: dict[str, object] = {}
    for name, value in given.items():
        if name not in known:
            write = meant(name, known) or f": there are {', '.join(known)}"
            raise ConfigError(f"no setting is called {name!r}{write}")
        taken[name] = _checked(spelled.get(name, name), name, value)
    return taken


def _checked(called: str, name: str, value: object) -> object:
    kind = _KINDS[name]
    if value is None and name in _MAY_BE_NONE:
        return None
    if name == "ports":
        return _ports(called, value)
    if name == "worker_ports":
        return _two_ports(called, value)
    if kind == "str":
        return _text(called, name, value)
    if kind == "bool":
        if not isinstance(value, bool):
            raise ConfigError(f"{called} must be true or false; got {value!r}")
        return value
    return _number(called, name, value)


def _number(called: str, name: str, value: object) -> object:
    whole = _KINDS[name] == "int"
    least, most = (1 if whole and name not in _MAY_BE_ZERO else 0), _MOST.get(name, _MOST_OF_OTHERS)
    fits = isinstance(value, int if whole else (int, float)) and not isinstance(value, bool)
    if not fits or not least <= value <= most:  # type: ignore[operator]
        what = f"a whole number, {least} or more" if whole else "a number"
        above = f", {most} at most" if fits and value > most else ""  # type: ignore[operator]
        raise ConfigError(f"{called} must be {what}{above}; got {value!r}")
    return value


def _text(called: str, name: str, value: object) -> str:
    if name.endswith("_devices"):  # one alone is a number in YAML
        value = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
        value = ",".join(str(one) for one in value) if isinstance(value, (list, tuple)) else value
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if not isinstance(value, str) or "\0" in value:
        raise ConfigError(f"{called} must be text; got {value!r}")
    return value


def _ports(called: str, value: object) -> dict[str, int]:
    if not isinstance(value, Mapping):
        raise ConfigError(f"{called} must be ports by name, e.g. {{'dashboard': 8265}}; got {value!r}")
    return {str(name): _port(f"{called}[{str(name)!r}]", port) for name, port in value.items()}


def _two_ports(called: str, value: object) -> tuple[int, int]:
    if not isinstance(value, (tuple, list)) or len(value) != 2:  # noqa: PLR2004 - first and last
        raise ConfigError(f"{called} must be the first and the last port; got {value!r}")
    first, last = (_port(called, one) for one in value)
    if first > last:
        raise ConfigError(f"{called} must be the first and the last port; got {value!r}")
    return first, last


def _port(called: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= LAST_PORT:
        raise ConfigError(f"{called} must be a port from 0 to {LAST_PORT}; got {value!r}")
    return value
