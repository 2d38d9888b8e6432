"""Scripts that take options: how they are launched, where they listen, how weights get to their engine.

Whatever a script is: those of TRL (``python train.py --use_vllm ...``) and ms-swift's commands say more, in
their own files. So are commands of ``ray start`` and ``vllm serve`` read, for their ports.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rayguard.dialects.job_settings import JobSettings, settings_of
from rayguard.dialects.port_options import ports_of, worker_ports_of
from rayguard.dialects.spelling import text_of
from rayguard.dialects.words import options_of, program_of, serves_here

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_LAUNCHERS = {"torchrun": "torchrun", "accelerate": "accelerate", "deepspeed": "deepspeed", "ray": "ray"}
LAUNCHING = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "accelerate.commands.launch": "accelerate",
}
_ON_RAY = ("verl.", "openrlhf.")  # they start an actor for each GPU themselves
_SERVERS = ("vllm.", "sglang.", "trl.scripts.vllm_serve")
SWIFTS_PROGRAMS = ("swift", "megatron")
SWIFTS_TRAINING = ("rlhf", "sft", "pt")  # its other commands are servers, or spread one model over all GPUs
_SPELLED = {"sleep": "--vllm_enable_sleep_mode"}
TRUE = (True, "true", "True")


def read(words: Sequence[str], environment: Mapping[str, str]) -> JobSettings:
    """Return the settings of a command; ``environment`` is what it sets for itself."""
    return settings_of(given_by(words, environment, swift=program_of(words)[0] == "swift"), spelled=_SPELLED)


def given_by(words: Sequence[str], environment: Mapping[str, str], *, swift: bool) -> dict[str, object]:
    """Return what a command says, by plain names; one of ms-swift has some options of its own."""
    options = options_of(words)
    given: dict[str, object] = {
        "launcher": _launcher(words, environment, swift=swift),
        "ports": ports_of(words, environment),
        "worker_ports": worker_ports_of(words),
    }
    if swift:
        given["framework"] = "ms-swift"
        given["async_generate"] = options.get("async_generate") in TRUE
    if options.get("vllm_mode") in ("server", "colocate"):
        given |= _of_engine(options, environment, swift=swift)
    if environment.get("CUDA_VISIBLE_DEVICES"):
        given["gpus"] = max(1, len(devices_of(environment)))
    return given


def devices_of(environment: Mapping[str, str]) -> list[str]:
    """Return the GPUs that an environment shows; empty where it says nothing of them."""
    shown = environment.get("CUDA_VISIBLE_DEVICES", "")
    return [one.strip() for one in shown.split(",") if one.strip()]


def shown_to(environment: Mapping[str, str], many: int) -> str:
    """Return the first ``many`` of the GPUs that an environment shows, as it names them."""
    shown = devices_of(environment)
    return ",".join(shown[:many] if many <= len(shown) else map(str, range(many)))


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
    return f"--{name} {text_of(value)}"


def _of_engine(
    options: Mapping[str, object], environment: Mapping[str, str], *, swift: bool
) -> dict[str, object]:
    """Return what is known of the engine, where the command says how it is used."""
    server = options["vllm_mode"] == "server"
    level = options.get("sleep_level", 0)
    asleep = type(level) is int and level > 0 if swift else options.get("vllm_enable_sleep_mode") in TRUE
    return {
        "vllm_mode": options["vllm_mode"],
        "colocated": not server,
        "local_server": serves_here(options) if server else None,
        "sleep": asleep,
        "trainer_devices": environment.get("CUDA_VISIBLE_DEVICES"),
        "on_cpu": options.get("use_cpu") in TRUE or environment.get("CUDA_VISIBLE_DEVICES") in ("", "-1"),
    }


def _launcher(words: Sequence[str], environment: Mapping[str, str], *, swift: bool) -> str | None:
    program, module = program_of(words)
    if swift and program in SWIFTS_PROGRAMS:  # start torchrun where they are told how many ranks
        if words[1:] and words[1] not in SWIFTS_TRAINING:
            return None
        return "torchrun" if environment.get("NPROC_PER_NODE", "1") != "1" else "python"
    if module.startswith(_ON_RAY):
        return "ray"
    if module.startswith(_SERVERS):
        return None
    if program.startswith("python"):
        return LAUNCHING.get(module, "python")
    return _LAUNCHERS.get(program)
