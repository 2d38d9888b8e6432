"""What was measured: values only. Where they come from is ``probes``, what they mean ``judge``."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Quantity(str, Enum):
    """What can grow or run out. All of them in bytes."""

    PRIVATE = "private"  # of a process: resident and shared with nobody (resident - shared)
    HEAP = "heap"  # of a process: what Python's own allocator handed out
    NATIVE = "native"  # of a process: private, and not Python's own
    MAPPED = "mapped"  # of a process: resident and shared, mostly pages of the object store
    ENGINE = "engine"  # of all processes of an engine that this process owns; ``who`` names the engine's life
    NODE = "node"  # of the node, or of the cgroup that limits it: what Ray's memory monitor looks at
    STORE = "store"  # of Ray's object store on this node
    SHM = "shm"  # files in /dev/shm
    DISK = "disk"  # of the file system that holds Ray's session, spilled objects and logs
    DEVICE = "device"  # of a GPU
    TORCH = "torch"  # reserved by torch's allocator in a process, on a GPU


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One number: bytes in use, and how many there can be (None: nobody knows)."""

    quantity: Quantity
    used: int
    limit: int | None = None
    who: str = ""  # a process's title, a device, a directory; empty for the node itself
    pid: int = 0

    @property
    def share(self) -> float | None:
        """How full it is, 0 to 1; None without a limit."""
        return self.used / self.limit if self.limit else None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySample:
    """What was read at one moment. ``at``: monotonic seconds, ``step``: the last that had ended (or -1)."""

    at: float
    readings: tuple[Reading, ...]
    step: int = -1
