"""Scripts that take options: TRL's (``python train.py --use_vllm ...``), ms-swift's (``swift rlhf --...``).

Only what tells whether the launch, its ports and its way of sending weights are right; the rest of their
settings comes with their own dialects. So are commands of ``ray start`` and ``vllm serve``, for their ports.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rayguard.preflight_checks.dialects.port_options import ports_of, worker_ports_of
from rayguard.preflight_checks.dialects.words import options_of, program_of, serves_here
from rayguard.preflight_checks.settings import JobSettings, settings_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_LAUNCHERS = {"torchrun": "torchrun", "accelerate": "accelerate", "deepspeed": "deepspeed", "ray": "ray"}
_MODULES = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "accelerate.commands.launch": "accelerate",
}
_ON_RAY = ("verl.", "openrlhf.")  # they start an actor for each GPU themselves
_SERVERS = ("vllm.", "sglang.")
_NAMES = {
    "vllm_mode": "--vllm_mode",
    "async_generate": "--async_generate",
    "sleep": "--sleep_level",
}
_TRUE = (True, "true", "True")


def read(words: Sequence[str], environment: Mapping[str, str]) -> JobSettings:
    """Return the settings of a command; ``environment`` is what it sets for itself."""
    options = options_of(words)
    swift = program_of(words)[0] == "swift"
    given: dict[str, object] = {
        "launcher": _launcher(words, environment, swift=swift),
        "ports": ports_of(words, environment),
        "worker_ports": worker_ports_of(words),
    }
    if swift:
        given["framework"] = "ms-swift"
        given["async_generate"] = options.get("async_generate") in _TRUE
    if options.get("vllm_mode") in ("server", "colocate"):
        given |= _of_engine(options, environment, swift=swift)
    shown = environment.get("CUDA_VISIBLE_DEVICES")
    if shown:
        given["gpus"] = max(1, len([one for one in shown.split(",") if one.strip()]))
    spelled = _NAMES if swift else {"sleep": "--vllm_enable_sleep_mode"}
    return settings_of(given, spelled=spelled)


def write(name: str, value: object) -> str:
    """Return a setting as an option, or as a variable."""
    if name == "gpus":
        return f"CUDA_VISIBLE_DEVICES={','.join(str(n) for n in range(int(str(value))))}"
    if name == "ports" and isinstance(value, dict):
        return " ".join(
            f"{one} {port}" if one.startswith("--") else f"{one}={port}" for one, port in value.items()
        )
    if name == "sleep":
        return "--vllm_enable_sleep_mode false"
    said = str(value).lower() if isinstance(value, bool) else str(value)
    return f"--{name} {said}"


def write_for_swift(name: str, value: object) -> str:
    """Return a setting as an option of ms-swift."""
    return "--sleep_level 0" if name == "sleep" else write(name, value)


def _of_engine(
    options: Mapping[str, object], environment: Mapping[str, str], *, swift: bool
) -> dict[str, object]:
    """Return what is known of the engine, where the command says how it is used."""
    server = options["vllm_mode"] == "server"
    level = options.get("sleep_level", 0)
    asleep = type(level) is int and level > 0 if swift else options.get("vllm_enable_sleep_mode") in _TRUE
    return {
        "vllm_mode": options["vllm_mode"],
        "colocated": not server,
        "local_server": serves_here(options) if server else None,
        "sleep": asleep,
        "trainer_devices": environment.get("CUDA_VISIBLE_DEVICES"),
        "on_cpu": options.get("use_cpu") in _TRUE or environment.get("CUDA_VISIBLE_DEVICES") in ("", "-1"),
    }


def _launcher(words: Sequence[str], environment: Mapping[str, str], *, swift: bool) -> str | None:
    program, module = program_of(words)
    if swift:  # starts torchrun itself where it is told how many ranks
        return "torchrun" if environment.get("NPROC_PER_NODE", "1") != "1" else "python"
    if module.startswith(_ON_RAY):
        return "ray"
    if module.startswith(_SERVERS):
        return None
    if program.startswith("python"):
        return _MODULES.get(module, "python")
    return _LAUNCHERS.get(program)
