"""Scripts that take options: TRL's (``python train.py --use_vllm ...``), ms-swift's (``swift rlhf --...``).

Only what tells whether the launch itself is right; the rest of their settings comes with their own dialects.
"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from rayguard.preflight_checks.dialects.values import value_of
from rayguard.preflight_checks.settings import JobSettings, settings_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_LAUNCHERS = {"torchrun": "torchrun", "accelerate": "accelerate", "deepspeed": "deepspeed", "ray": "ray"}
_MODULES = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "accelerate.commands.launch": "accelerate",
}
_NAMES = {"vllm_mode": "--vllm_mode", "async_generate": "--async_generate"}


def read(words: Sequence[str], environment: Mapping[str, str]) -> JobSettings:
    """Return the settings of a command; ``environment`` is what it sets for itself."""
    options = _options(words)
    swift = PurePosixPath(words[0]).name == "swift" if words else False
    given: dict[str, Any] = {"launcher": _launcher(words, environment, swift=swift)}
    if swift:
        given["framework"] = "ms-swift"
        given["async_generate"] = options.get("async_generate") in (True, "true", "True")
    if options.get("vllm_mode") in ("server", "colocate"):
        given["vllm_mode"] = options["vllm_mode"]
    shown = environment.get("CUDA_VISIBLE_DEVICES")
    if shown:
        given["gpus"] = max(1, len([one for one in shown.split(",") if one.strip()]))
    return settings_of(given, spelled=_NAMES if swift else {})


def write(name: str, value: object) -> str:
    """Return a setting as an option."""
    if name == "gpus":
        return f"CUDA_VISIBLE_DEVICES={','.join(str(n) for n in range(int(str(value))))}"
    said = str(value).lower() if isinstance(value, bool) else str(value)
    return f"--{name} {said}"


def _options(words: Sequence[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for at, word in enumerate(words):
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            following = words[at + 1] if at + 1 < len(words) else "--"
            found[name.replace("-", "_")] = value_of(value) if equals else _value(following)
    return found


def _value(following: str) -> Any:
    return True if following.startswith("--") else value_of(following)


def _launcher(words: Sequence[str], environment: Mapping[str, str], *, swift: bool) -> str | None:
    program = PurePosixPath(words[0]).name if words else ""
    if swift:  # starts torchrun itself where it is told how many ranks
        return "torchrun" if environment.get("NPROC_PER_NODE", "1") != "1" else "python"
    if program.startswith("python"):
        module = words[words.index("-m") + 1] if "-m" in words[:-1] else ""
        return _MODULES.get(module, "python")
    return _LAUNCHERS.get(program)
