"""Waiting until the memory of ended engine processes is back on the GPU.

The driver frees it some time after the process is gone; an engine that starts before sees too little and
fails with "no available memory for the cache blocks". No GPU, no wait.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_CHECK_S = 0.1


def wait_for_memory(pids: Iterable[int], deadline_s: float = 30.0) -> bool:
    """Wait until no GPU lists one of ``pids``; False when the deadline passed, True also without a GPU."""
    gone = set(pids)
    try:
        import pynvml  # noqa: PLC0415 - loads the driver's library

        pynvml.nvmlInit()
    except Exception:  # noqa: BLE001 - no driver, no GPU: pynvml has a type for each way to lack one
        return True
    try:
        until = time.monotonic() + deadline_s
        pause = threading.Event()
        while gone & _users(pynvml):
            if time.monotonic() >= until:
                return False
            pause.wait(_CHECK_S)
        return True
    finally:
        pynvml.nvmlShutdown()


def _users(pynvml: object) -> set[int]:
    nvml: object = pynvml
    found: set[int] = set()
    for index in range(nvml.nvmlDeviceGetCount()):  # type: ignore[attr-defined]
        device = nvml.nvmlDeviceGetHandleByIndex(index)  # type: ignore[attr-defined]
        found.update(p.pid for p in nvml.nvmlDeviceGetComputeRunningProcesses(device))  # type: ignore[attr-defined]
    return found
