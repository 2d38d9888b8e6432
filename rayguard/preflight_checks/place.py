"""Where the job is started: its launcher, and what the machine allows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rayguard.preflight_checks.finding import PreflightFinding, error, warning
from rayguard.preflight_checks.machine import GIB, SHM

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rayguard.dialects.job_settings import JobSettings
    from rayguard.preflight_checks.machine import MachineFacts

_FEW_FILES, _FEW_PROCESSES = 8192, 4096
_LITTLE_SHM, _LITTLE_DISK = GIB, 10 * GIB


def check(job: JobSettings, machine: MachineFacts) -> Iterator[PreflightFinding]:
    """Yield what is wrong with the place."""
    yield from _launcher(job, machine)
    yield from _server(job)
    if 0 < machine.shm < _LITTLE_SHM:
        yield warning(
            "place.shm",
            f"{SHM} has {machine.shm / GIB:.2f} GiB free: Ray's object store and vLLM's workers share "
            "it, and end with a bus error where it is full (docker: --shm-size, Kubernetes: an emptyDir "
            "with medium Memory)",
        )
    if 0 < machine.disk < _LITTLE_DISK:
        yield warning(
            "place.disk", f"{machine.disk / GIB:.1f} GiB are free where Ray writes its logs and spills to"
        )
    if 0 < machine.open_files < _FEW_FILES:
        yield warning(
            "place.open_files",
            f"a process may open {machine.open_files} files: Ray opens some for each worker (ulimit -n "
            "65535)",
        )
    if 0 < machine.processes < _FEW_PROCESSES:
        yield warning(
            "place.processes",
            f"a user may have {machine.processes} processes and threads: Ray and torch make hundreds a "
            "worker (ulimit -u unlimited)",
        )


def _launcher(job: JobSettings, machine: MachineFacts) -> Iterator[PreflightFinding]:
    ranks = machine.environment.get("WORLD_SIZE") or "1"
    if job.launcher != "python" or ranks != "1" or "LOCAL_RANK" in machine.environment:
        return
    gpus = job.gpus or machine.gpus
    if gpus > 1 and job.framework == "TRL":
        yield error(
            "place.no_launcher",
            f"{gpus} GPUs are visible to one process, and no launcher starts a rank for each: transformers "
            "wraps the model in DataParallel, which TRL refuses, and older ones fail of with device-side "
            f"asserts. Start it with `accelerate launch --num_processes {gpus}` or `torchrun "
            f"--nproc_per_node {gpus}`, or show it one: `CUDA_VISIBLE_DEVICES=0`",
            gpus=1,
        )
    elif gpus > 1 and job.framework == "ms-swift" and job.vllm_mode is not None:
        yield error(
            "place.no_launcher",
            f"{gpus} GPUs are visible to one process, and no rank is started for each: ms-swift spreads the "
            f"model over them, which it refuses with vLLM. Set NPROC_PER_NODE={gpus} in the environment, or "
            "show it one: `CUDA_VISIBLE_DEVICES=0`",
            gpus=1,
        )


def _server(job: JobSettings) -> Iterator[PreflightFinding]:
    if job.async_generate and job.vllm_mode != "server":
        yield error(
            "engine.async_needs_server",
            f"{job.name('async_generate')} generates while the trainer trains, which an engine in the "
            f"trainer's own process cannot: it needs {job.name('vllm_mode')}=server, with `swift rollout` "
            "started first",
            vllm_mode="server",
        )
