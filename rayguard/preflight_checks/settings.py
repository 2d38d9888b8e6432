"""The settings of a job in plain words, whichever framework it is for; None is what nobody said.

What a command or a file says of them is read in ``rayguard.preflight_checks.dialects``.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rayguard.errors import ConfigError
from rayguard.options import meant

if TYPE_CHECKING:
    from collections.abc import Mapping


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
    chunked_prefill: bool | None = None
    gpu_memory_utilization: float | None = None
    vllm_mode: str | None = None  # "server" or "colocate"
    async_generate: bool = False
    # The model
    model: str | None = None  # a folder, or a name that lies in the Hugging Face cache
    full_shard: bool = True
    offload_params: bool = False
    offload_optimizer: bool = False
    reference_offload: bool | None = None  # None: there is no reference model
    colocated: bool = True  # trainer and engine share each GPU
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


_NUMBERS = {
    one.name: "float" if "float" in str(one.type) else "int"
    for one in dataclasses.fields(JobSettings)
    if "int" in str(one.type) or "float" in str(one.type)
}
_MAY_BE_ZERO = frozenset({"response_tokens"})


def settings_of(given: Mapping[str, object], *, spelled: Mapping[str, str] | None = None) -> JobSettings:
    """Return settings by their plain names, checked one by one.

    Raises:
        ConfigError: There is no such setting, or it is of another kind.
    """
    spelled = spelled or {}
    known = [one.name for one in dataclasses.fields(JobSettings) if one.name != "spelled"]
    for name, value in given.items():
        if name not in known:
            write = meant(name, known) or f": there are {', '.join(known)}"
            raise ConfigError(f"preflight knows no setting {name!r}{write}")
        _refuse(spelled.get(name, name), name, value)
    return JobSettings(**given, spelled=spelled)  # type: ignore[arg-type]


def _refuse(called: str, name: str, value: object) -> None:
    kind = _NUMBERS.get(name)
    if kind is None or value is None:
        return
    fits = isinstance(value, (int, float) if kind == "float" else int) and not isinstance(value, bool)
    least = 0 if kind == "float" or name in _MAY_BE_ZERO else 1
    if not fits or not least <= value < float("inf"):  # type: ignore[operator]
        what = "a number" if kind == "float" else f"a whole number, {least} or more"
        raise ConfigError(f"{called} must be {what}; got {value!r}")
