"""What an engine's processes hold in memory, and whether there is room for another one beside it.

Host memory by the kernel, device memory by NVML. Does not free anything, but waits for what comes back: the
driver frees a GPU's memory some time after the process is gone, and an engine that starts before sees too
little and fails with "no available memory for the cache blocks". No GPU, no wait.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rayguard.errors import ConfigError
from rayguard.memory.probes.node import NodeProbe

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pynvml

    from rayguard.engine.settings import Values
    from rayguard.process.identity import ProcessId

_KEPT_FREE_RATIO = 0.06  # of the machine: Ray kills its workers at 95 % of use
_GIB = 1 << 30
_CHECK_S = 0.1


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


def refuse_without_room(values: Values, beside: Footprint) -> None:
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
    limits = NodeProbe().limits()
    free, total = min(limit.left for limit in limits), min(limit.total for limit in limits)
    kept = int(_KEPT_FREE_RATIO * total)
    if free - beside.host_bytes < kept:
        raise ConfigError(
            f"no room for a standby engine: it would take about {beside.host_bytes / _GIB:.1f} GiB of host "
            f"memory, as the serving one does; {free / _GIB:.1f} of {total / _GIB:.1f} GiB are free and "
            f"{kept / _GIB:.1f} GiB are to stay so. Give the actor more memory, or set "
            f"GuardPolicy(standby='process')"
        )


def _torch_has_cuda() -> bool:
    """Whether engines of this process compute on NVIDIA GPUs: vLLM for CPUs may run beside one."""
    version = getattr(sys.modules.get("torch"), "version", None)
    return getattr(version, "cuda", None) is not None


def _on_devices(pids: set[int]) -> int:
    with nvml() as driver, contextlib.suppress(Exception):  # the driver's errors have no common type
        return sum(held for pid, held in bytes_by_pid(driver).items() if pid in pids)
    return 0


def _visible_devices(count: int) -> list[tuple[str, int, int]]:
    """Return name, free and total bytes of the first ``count`` GPUs that an engine would see."""
    found: list[tuple[str, int, int]] = []
    with nvml() as driver, contextlib.suppress(Exception):  # as above; vLLM itself will look then
        if driver is None:
            return []
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        names = map(str, range(driver.nvmlDeviceGetCount())) if visible is None else visible.split(",")
        for name in [name.strip() for name in names if name.strip()][:count]:
            if name.isdecimal():
                handle = driver.nvmlDeviceGetHandleByIndex(int(name))
            else:
                handle = driver.nvmlDeviceGetHandleByUUID(name)
            memory = driver.nvmlDeviceGetMemoryInfo(handle)
            found.append((f"GPU {name}", int(memory.free), int(memory.total)))
    return found


@contextlib.contextmanager
def nvml() -> Iterator[pynvml]:
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


def bytes_by_pid(driver: pynvml) -> dict[int, int]:
    """Return what each process that computes on a GPU holds there."""
    held: dict[int, int] = {}
    for index in range(0 if driver is None else driver.nvmlDeviceGetCount()):
        for pid, count in _users(driver, driver.nvmlDeviceGetHandleByIndex(index)):
            held[pid] = held.get(pid, 0) + count
    return held


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """Bytes of one GPU: what some processes hold of it, and what is free."""

    held: int
    free: int


def by_device(pids: set[int]) -> dict[str, DeviceUse]:
    """Return what ``pids`` hold of each GPU, and what is free there. Not of one cut into instances."""
    found: dict[str, DeviceUse] = {}
    with nvml() as driver:
        for index in range(0 if driver is None else driver.nvmlDeviceGetCount()):
            device = driver.nvmlDeviceGetHandleByIndex(index)
            if not _is_cut(driver, device):
                held = sum(count for pid, count in _users(driver, device) if pid in pids)
                found[f"GPU {index}"] = DeviceUse(held, int(driver.nvmlDeviceGetMemoryInfo(device).free))
    return found


def owners(device: str, but: set[int]) -> list[tuple[int, int]]:
    """Return who else holds memory of ``device``, and how many bytes, the most first."""
    with nvml() as driver:
        if driver is None:
            return []
        users = _users(driver, driver.nvmlDeviceGetHandleByIndex(int(device.split()[1])))
    return sorted((user for user in users if user[0] not in but), key=lambda user: -user[1])


def _users(driver: pynvml, device: object) -> list[tuple[int, int]]:
    users = driver.nvmlDeviceGetComputeRunningProcesses(device)
    return [(user.pid, int(getattr(user, "usedGpuMemory", 0) or 0)) for user in users]


def _is_cut(driver: pynvml, device: object) -> bool:
    with contextlib.suppress(driver.NVMLError):  # a GPU that knows no instances
        return bool(driver.nvmlDeviceGetMigMode(device)[0])
    return False


def wait_for_memory(pids: Iterable[int], deadline_s: float = 30.0) -> bool:
    """Wait until no GPU lists one of ``pids``; False when the deadline passed, True also without a GPU."""
    ended, until, pause = set(pids), time.monotonic() + deadline_s, threading.Event()
    with nvml() as driver:
        while ended & bytes_by_pid(driver).keys():
            if time.monotonic() >= until:
                return False
            pause.wait(_CHECK_S)
    return True
