"""Ways to get weights from the trainer to the engines that cannot work together with the rest.

What is said here was read in TRL 1.x, ms-swift 4 and OpenRLHF 0.9 to 0.11; the public reports of each are in
``docs/preflight.md``.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from rayguard.batching.plan import largest_divisor
from rayguard.preflight_checks.finding import PreflightFinding, error, warning

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rayguard.dialects.job_settings import JobSettings
    from rayguard.preflight_checks.machine import MachineFacts

_ALLOCATOR = "PYTORCH_CUDA_ALLOC_CONF"  # vLLM reads no other name
_ALWAYS_NCCL_SINCE = (0, 8, 9)  # OpenRLHF, whatever the backend (its pull request 1100)
_SEGMENTS = "expandable_segments:True"
_SEGMENTS_SINCE = (0, 20, 1)  # vLLM turns them off round its sleep by itself (vllm#40812)


def check(job: JobSettings, machine: MachineFacts) -> Iterator[PreflightFinding]:
    """Yield what the first push of weights would fail of, and settings that do nothing."""
    if job.framework == "OpenRLHF":
        yield from _openrlhf(job, machine)
    elif job.vllm_mode == "server" or job.weight_sync == "nccl":
        yield from _by_nccl(job, machine)
    yield from _sleep(job, machine)


def _by_nccl(job: JobSettings, machine: MachineFacts) -> Iterator[PreflightFinding]:
    """NCCL knows each GPU once in a group, and no CPU."""
    if job.on_cpu:
        yield error(
            "weights.cpu",
            "the trainer is to use no GPU, and its weights go to the engine by NCCL, which needs one on "
            "either side: give it one, or sample without a server",
        )
        return
    shared = _devices(job.trainer_devices) & _devices(job.engine_devices)
    where = ""
    if shared and job.local_server is not False:
        where = f"GPU {', '.join(sorted(shared))} is the trainer's and the engine's"
    elif job.vllm_mode == "server" and job.local_server and machine.gpus_here == 1:
        where = "this machine has one GPU, which trainer and server would share"
    elif job.vllm_mode is None and job.colocated:
        where = "trainer and engine share each GPU"
    if where:
        fix = {"vllm_mode": "colocate"} if job.vllm_mode == "server" else {"weight_sync": "ipc"}
        yield error(
            "weights.same_gpu",
            f"{where}, and weights go by NCCL, which refuses a GPU that is in a group twice ('Duplicate GPU "
            "detected'): give each its own GPUs (CUDA_VISIBLE_DEVICES), or let them share by design",
            **fix,
        )


def _openrlhf(job: JobSettings, machine: MachineFacts) -> Iterator[PreflightFinding]:
    """It sends weights by CUDA IPC only with nccl and colocated; all else is an NCCL group of its own."""
    shared, world = bool(job.colocated) and not job.async_train, job.world
    other = job.weight_sync not in (None, "nccl") and not job.sync_with_ray
    if shared and other and not _before(machine.installed.get("openrlhf", ""), _ALWAYS_NCCL_SINCE):
        yield error(
            "weights.same_gpu",
            f"{job.name('weight_sync')} {job.weight_sync} with {job.name('colocated')}: OpenRLHF sends "
            "weights by CUDA IPC only with nccl; with another one it makes an NCCL group of trainer and "
            "engines, which refuses a GPU that is in it twice ('Duplicate GPU detected')",
            weight_sync="nccl",
        )
    sampling = None if job.engines is None else job.engines * job.tensor_parallel
    if shared and sampling is not None and world is not None and sampling != world:
        size = largest_divisor(world, job.tensor_parallel)
        yield error(
            "weights.colocated_engines",
            f"{job.engines} engines of {job.tensor_parallel} GPUs are {sampling} GPUs, and the trainer has "
            f"{world}: colocated, they must be the same (OpenRLHF asserts it)",
            engines=world // size,
            **({} if size == job.tensor_parallel else {"tensor_parallel": size}),
        )
    if job.sleep and job.colocated and job.async_train:
        yield error(
            "engine.sleep_async",
            f"{job.name('sleep')} with {job.name('async_train')}: engines that sample while the trainer "
            "trains cannot sleep (OpenRLHF: 'Async RLHF is not supported with --vllm_enable_sleep')",
            sleep=False,
        )


def _sleep(job: JobSettings, machine: MachineFacts) -> Iterator[PreflightFinding]:
    if not job.sleep:
        return
    vllm = machine.installed.get("vllm", "")
    if job.colocated is False:
        yield warning(
            "engine.sleep_ignored",
            f"{job.name('sleep')} does nothing for an engine with GPUs of its own: it is turned off",
            sleep=False,
        )
    elif _SEGMENTS in machine.environment.get(_ALLOCATOR, "") and _before(vllm, _SEGMENTS_SINCE):
        yield error(
            "engine.sleep_segments",
            f"{job.name('sleep')} with {_ALLOCATOR}={_SEGMENTS}: vLLM {vllm} refuses it ('Expandable "
            "segments are not compatible with memory pool'; from 0.20.1 on it is fine): take it out",
        )


def _before(version: str, first: tuple[int, ...]) -> bool:
    """Say whether ``version`` is known and older."""
    found = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", version)
    return found is not None and tuple(int(one or 0) for one in found.groups()) < first


def _devices(said: str | None) -> set[str]:
    return {one.strip() for one in (said or "").split(",") if one.strip() not in ("", "-1")}
