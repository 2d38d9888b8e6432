"""What an engine's processes hold in memory, and whether there is room for another one beside it.

Host memory by the kernel, device memory by NVML. Does not free anything; waiting until the memory of ended
processes is back on a GPU is ``rayguard.engine.device``.
"""

from __future__ import annotations

import contextlib
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rayguard.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from rayguard.process.identity import ProcessId

_KEPT_FREE_RATIO = 0.06  # of the machine: Ray kills its workers at 95 % of use
_CGROUP = Path("/sys/fs/cgroup")
_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Footprint:
    """What ending these processes would give back; device bytes are 0 where no driver tells."""

    host_bytes: int = 0
    device_bytes: int = 0

    def __str__(self) -> str:
        host, device = self.host_bytes / _GIB, self.device_bytes / _GIB
        return f"{host:.2f} GiB of host memory" + (f" and {device:.2f} GiB on the GPU" if device else "")


def measure(processes: Iterable[ProcessId]) -> Footprint:
    """Return what ``processes`` hold alone: of pages that they share with others, nothing."""
    import psutil  # noqa: PLC0415 - not where only the value is needed

    pids, host = {process.pid for process in processes}, 0
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            host += int(psutil.Process(pid).memory_full_info().uss)
    return Footprint(host, _on_devices(pids))


def refuse_without_room(values: Mapping[str, Any], beside: Footprint) -> None:
    """Say in time what vLLM would say after a minute, or the kernel never.

    ``values`` are the arguments of the engine that is to be built, ``beside`` what the serving one holds.

    Raises:
        ConfigError: A second engine does not fit on the GPU or in host memory.
    """
    share = values.get("gpu_memory_utilization")
    count = int(values.get("tensor_parallel_size") or 1) * int(values.get("pipeline_parallel_size") or 1)
    if isinstance(share, float) and _torch_has_cuda():
        for name, free, total in _visible_devices(count):
            if free < share * total:
                raise ConfigError(
                    f"no room for a standby engine on {name}: gpu_memory_utilization={share} asks for "
                    f"{share * total / _GIB:.1f} of {total / _GIB:.1f} GiB, and {free / _GIB:.1f} are free. "
                    f"Choose it in build_engine so that two engines fit (0.45 where nobody else uses the "
                    f"GPU), or set GuardPolicy(standby='process')"
                )
    free, total = _host_memory()
    kept = int(_KEPT_FREE_RATIO * total)
    if free - beside.host_bytes < kept:
        raise ConfigError(
            f"no room for a standby engine: it would take about {beside.host_bytes / _GIB:.1f} GiB of host "
            f"memory, as the serving one does; {free / _GIB:.1f} of {total / _GIB:.1f} GiB are free and "
            f"{kept / _GIB:.1f} GiB are to stay so. Give the actor more memory, or set "
            f"GuardPolicy(standby='process')"
        )


def _host_memory() -> tuple[int, int]:
    """Return what is free and what there is, of the machine or of the container, whichever is less."""
    import psutil  # noqa: PLC0415

    machine = psutil.virtual_memory()
    free, total = int(machine.available), int(machine.total)
    with contextlib.suppress(OSError, ValueError, KeyError):  # no version 2, no limit ("max")
        limit = int((_CGROUP / "memory.max").read_text())
        used = int((_CGROUP / "memory.current").read_text())
        stat = dict(line.split() for line in (_CGROUP / "memory.stat").read_text().splitlines())
        free, total = min(free, limit - used + int(stat["inactive_file"])), min(total, limit)
    return free, total


def _torch_has_cuda() -> bool:
    """Whether engines of this process compute on NVIDIA GPUs: vLLM for CPUs may run beside one."""
    torch: Any = sys.modules.get("torch")
    return torch is not None and getattr(torch.version, "cuda", None) is not None


@contextlib.contextmanager
def _nvml() -> Iterator[Any]:
    """Give the driver's library, None where there is no GPU or it does not answer."""
    try:
        import pynvml  # noqa: PLC0415 - loads the driver's library

        pynvml.nvmlInit()
    except Exception:  # noqa: BLE001 - pynvml has a type for each way to lack a driver
        yield None
        return
    try:
        yield pynvml
    finally:
        pynvml.nvmlShutdown()


def _on_devices(pids: set[int]) -> int:
    held = 0
    with _nvml() as nvml, contextlib.suppress(Exception):  # the driver's errors have no common type
        for index in range(0 if nvml is None else nvml.nvmlDeviceGetCount()):
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            users = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
            held += sum(int(user.usedGpuMemory or 0) for user in users if user.pid in pids)
    return held


def _visible_devices(count: int) -> list[tuple[str, int, int]]:
    """Return name, free and total bytes of the first ``count`` GPUs that an engine would see."""
    found: list[tuple[str, int, int]] = []
    with _nvml() as nvml, contextlib.suppress(Exception):  # as above; vLLM itself will look then
        if nvml is None:
            return []
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        names = [str(i) for i in range(nvml.nvmlDeviceGetCount())] if visible is None else visible.split(",")
        for name in [name.strip() for name in names if name.strip()][:count]:
            by_index = name.isdecimal()
            handle = (
                nvml.nvmlDeviceGetHandleByIndex(int(name))
                if by_index
                else nvml.nvmlDeviceGetHandleByUUID(name)
            )
            memory = nvml.nvmlDeviceGetMemoryInfo(handle)
            found.append((f"GPU {name}", int(memory.free), int(memory.total)))
    return found
