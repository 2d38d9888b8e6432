"""The memory of GPUs: by the driver for everybody (NVML), by torch's allocator for this process.

Never initialises CUDA and never imports torch: a look must not cost a process the 0.5 GB of a context. The
driver tells pids of the machine, which inside a container may be other numbers than ours, and no bytes per
process on some systems (MIG, WSL): then they are missing from ``users``.
"""

from __future__ import annotations

import contextlib
import os
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMemory:
    """Bytes of one GPU; ``users`` are bytes by pid, of those processes whose bytes the driver tells."""

    index: int
    uuid: str
    name: str
    used: int
    total: int
    users: Mapping[int, int] = field(default_factory=dict)


class DeviceProbe:
    """Asks the driver; loads it once, and again after a fork."""

    def __init__(self, *, visible_only: bool = False) -> None:
        self._visible_only = visible_only
        self._nvml: Any = None
        self._opened_by = 0
        self.missing = ""  # why there is no driver to ask; empty before the first look and while there is one

    def read(self) -> tuple[DeviceMemory, ...]:
        """Return all GPUs that can be read; empty without any. 0.1-1 ms a GPU by the driver."""
        nvml = self._driver()
        if nvml is None:
            return ()
        found: list[DeviceMemory] = []
        for index in range(_or(0, nvml, "nvmlDeviceGetCount")):
            device = _device(nvml, index)
            if device is not None and self._visible(device):
                found.append(device)
        return tuple(found)

    def close(self) -> None:
        """Let go of the driver."""
        nvml, self._nvml = self._nvml, None
        if nvml is not None and self._opened_by == os.getpid():
            with contextlib.suppress(nvml.NVMLError):
                nvml.nvmlShutdown()

    def _driver(self) -> Any:
        if self._opened_by != os.getpid():
            self._nvml, self._opened_by = None, os.getpid()
            try:
                import pynvml  # noqa: PLC0415 - loads the driver's library
            except ImportError as error:
                self.missing = str(error)
                return None
            try:
                pynvml.nvmlInit()
                self._nvml, self.missing = pynvml, ""
            except pynvml.NVMLError as error:  # no library, no driver, no permission
                self.missing = str(error)
        return self._nvml

    def _visible(self, device: DeviceMemory) -> bool:
        wanted = os.environ.get("CUDA_VISIBLE_DEVICES")
        if not self._visible_only or wanted is None:
            return True
        names = [name.strip() for name in wanted.split(",")]
        return any(
            name == str(device.index) or (not name.isdecimal() and name and device.uuid.startswith(name))
            for name in names
        )


def torch_reserved() -> dict[int, int]:
    """Return bytes by device (as torch counts: the visible ones) that torch's allocator took from the driver.

    Of this process; empty where nothing has used CUDA yet.
    """
    torch: Any = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    # Half imported (another thread is at it), built without CUDA, or CUDA not in use: nothing to see.
    if cuda is None or not getattr(cuda, "is_initialized", bool)() or not hasattr(cuda, "memory_stats"):
        return {}
    stats = (cuda.memory_stats(index) for index in range(cuda.device_count()))
    reserved = (int(one.get("reserved_bytes.all.current", 0)) for one in stats)
    return {index: used for index, used in enumerate(reserved) if used}


def _device(nvml: Any, index: int) -> DeviceMemory | None:
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    except nvml.NVMLError:  # it fell off the bus, or is not ours to see
        return None
    users: dict[int, int] = {}
    for kind in ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses"):
        for user in _or((), nvml, kind, handle):
            if user.usedGpuMemory:
                users[int(user.pid)] = int(user.usedGpuMemory)  # a process is in both lists with one number
    return DeviceMemory(
        index=index,
        uuid=_text(_or("", nvml, "nvmlDeviceGetUUID", handle)),
        name=_text(_or("", nvml, "nvmlDeviceGetName", handle)),
        used=int(memory.used),
        total=int(memory.total),
        users=users,
    )


def _or(otherwise: Any, nvml: Any, function: str, *arguments: Any) -> Any:
    try:
        return getattr(nvml, function)(*arguments)
    except nvml.NVMLError:
        return otherwise


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
