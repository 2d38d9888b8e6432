"""The memory of the node or of its container, as Ray's memory monitor counts it, and as the kernel limits it.

Ray 2.60 (``src/ray/common/monitors/memory_monitor_utils.cc``, and the log of its raylet): the limit is the
smaller of the machine's memory and the limit at the *root* of the cgroup file system, which is the
container's own inside one; used is MemTotal - MemAvailable, or usage minus active and inactive file cache
where the cgroup's limit is the smaller. A limit further down (a systemd slice, a pod seen from outside) Ray
does not see, and the kernel kills at it: that is ``own_cgroup``.

All files are read anew each time, since the limit of a container can be changed while it runs.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rayguard.process.cgroup import UNLIMITED, memory_groups, number, numbers, oom_kills, text, usage

if TYPE_CHECKING:
    from collections.abc import Mapping

_PROC, _CGROUP = Path("/proc"), Path("/sys/fs/cgroup")
_MEMSW = "memory.memsw.usage_in_bytes"
_AVERAGE = re.compile(r"(avg\d+)=(\d+(?:\.\d+)?)")


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitorSettings:
    """Ray's own settings of its monitor; the defaults are Ray 2.60's."""

    usage_threshold: float = 0.95
    min_free_bytes: int = -1
    refresh_ms: int = 250  # 0 switches it off
    count_swap: bool = False

    @classmethod
    def of(
        cls, environment: Mapping[str, str] = os.environ, system_config: Mapping[str, Any] | None = None
    ) -> MonitorSettings:
        """Read them as a raylet does: ``_system_config`` (it wins), ``RAY_...`` variables, defaults.

        ``environment`` must be the raylet's; workers inherit it. What cannot be read counts as absent.
        """
        return cls(
            usage_threshold=_chosen(
                environment, system_config, "memory_usage_threshold", cls().usage_threshold
            ),
            min_free_bytes=_chosen(environment, system_config, "min_memory_free_bytes", cls().min_free_bytes),
            refresh_ms=_chosen(environment, system_config, "memory_monitor_refresh_ms", cls().refresh_ms),
            count_swap=bool(_chosen(environment, system_config, "count_swap_in_memory_monitor", 0)),
        )

    def kills_at(self, total: int) -> int | None:
        """Return the bytes of use above which Ray kills workers; None when it never does."""
        if self.refresh_ms <= 0:
            return None
        share = int(total * min(1.0, max(0.0, self.usage_threshold)))
        return max(share, total - self.min_free_bytes) if self.min_free_bytes >= 0 else share


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeMemory:
    """Bytes used, of how many. ``source`` is what limits: "machine", "cgroup", or a cgroup's directory."""

    used: int
    total: int
    source: str = "machine"

    @property
    def left(self) -> int:
        """Bytes that may still be taken."""
        return self.total - self.used

    def with_swap(self, used: int, total: int) -> NodeMemory:
        """Return it with swap counted as memory."""
        return NodeMemory(used=self.used + used, total=self.total + total, source=self.source)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stall:
    """Shares of time (0 to 1) in which tasks waited for memory: some of them, all of them (PSI)."""

    some_10s_ratio: float
    some_60s_ratio: float
    full_10s_ratio: float
    full_60s_ratio: float


class NodeProbe:
    """Reads this node; the caller's cgroup is "own"."""

    def __init__(
        self,
        settings: MonitorSettings | None = None,
        *,
        proc: Path = _PROC,
        cgroup: Path = _CGROUP,
    ) -> None:
        self.settings = settings or MonitorSettings.of()
        self._proc = proc
        self._cgroup = cgroup

    def read(self) -> NodeMemory | None:
        """Return use and limit as Ray sees them; None where neither meminfo nor a cgroup can be read."""
        count_swap, (machine, swap) = self.settings.count_swap, self._machine()
        version_2 = (self._cgroup / "memory.max").exists()
        # Version 1 counts memory and swap in one number, so the machine's must be one number too.
        together = count_swap and not version_2 and (self._cgroup / "memory" / _MEMSW).exists()
        if together and machine is not None:
            machine = machine.with_swap(*swap)
        group = _group(self._cgroup if version_2 else self._cgroup / "memory", swap=together)
        if group is not None and (machine is None or group.total <= machine.total):
            found = group
        elif machine is not None:
            found = machine
        else:
            return None
        return found.with_swap(*self._swap(swap)) if count_swap and not together else found

    def own_cgroup(self) -> NodeMemory | None:
        """Return the fullest of the limited cgroups around this process, without the root; None if none."""
        return max(self._own_limits(), key=lambda memory: memory.used / memory.total, default=None)

    def limits(self) -> tuple[NodeMemory, ...]:
        """Return all that limits this process: the node as Ray sees it, each limited cgroup around it."""
        node = self.read()
        return (*(() if node is None else (node,)), *self._own_limits())

    def left(self, default: int = 0) -> int:
        """Return how many bytes this process may still take; ``default`` where nothing can be read."""
        return max(0, min((limit.left for limit in self.limits()), default=default))

    def _own_limits(self) -> list[NodeMemory]:
        return [
            NodeMemory(used=memory.used, total=memory.total, source=str(directory))
            for directory in self._own_directories()
            if (memory := _group(directory)) is not None
        ]

    def oom_kills(self) -> int | None:
        """Return how many processes of this cgroup the kernel has killed for memory; None if unknown.

        Version 2 counts those of its children too. Outside of any cgroup it is the whole machine's number.
        """
        own = next(iter(self._own_directories()), self._cgroup)  # its parents also count its neighbours
        for directory in (own, self._cgroup, self._cgroup / "memory"):
            count = oom_kills(directory)
            if count is not None:
                return count
        return numbers(self._proc / "vmstat").get("oom_kill")  # None before Linux 4.13

    def stall(self) -> Stall | None:
        """Return the pressure of this process's cgroup, or of the machine; None where the kernel has none."""
        around = (directory / "memory.pressure" for directory in (*self._own_directories(), self._cgroup))
        for path in (*around, self._proc / "pressure/memory"):
            found = _stall(text(path))
            if found is not None:
                return found
        return None

    def _machine(self) -> tuple[NodeMemory | None, tuple[int, int]]:
        kib = {name.rstrip(":"): value for name, value in numbers(self._proc / "meminfo").items()}
        total, available = kib.get("MemTotal"), kib.get("MemAvailable")
        if available is None and {"MemFree", "Cached", "Buffers"} <= kib.keys():
            available = kib["MemFree"] + kib["Cached"] + kib["Buffers"]
        swap_total = kib.get("SwapTotal", 0) * 1024
        swap = (max(0, swap_total - kib.get("SwapFree", 0) * 1024), swap_total)
        if not total or available is None or available > total:
            return None, swap
        return NodeMemory(used=(total - available) * 1024, total=total * 1024), swap

    def _swap(self, machine: tuple[int, int]) -> tuple[int, int]:
        """Return used and total swap of the cgroup; the machine's where the cgroup has no such file."""
        content = text(self._cgroup / "memory.swap.max").strip()
        if not content:
            return machine
        total = int(content) if content.isdecimal() and int(content) < UNLIMITED else machine[1]
        used = number(self._cgroup / "memory.swap.current") or 0
        cached = numbers(self._cgroup / "memory.stat").get("swapcached", 0)
        return (max(0, used - cached) if total else 0), total

    def _own_directories(self) -> tuple[Path, ...]:
        """Return the memory cgroups around this process, innermost first, without the root."""
        found = memory_groups(text(self._proc / "self/cgroup"), self._cgroup)
        return () if found is None else found[1]


def _group(directory: Path, *, swap: bool = False) -> NodeMemory | None:
    found = usage(directory, swap=swap)
    return None if found is None else NodeMemory(used=found.used, total=found.limit, source="cgroup")


def _stall(content: str) -> Stall | None:
    """Read "some avg10=0.12 avg60=0.00 avg300=0.00 total=123"; percent become shares."""
    found: dict[str, float] = {}
    for line in content.splitlines():
        who = line.partition(" ")[0]
        found.update({f"{who} {name}": float(value) / 100 for name, value in _AVERAGE.findall(line)})
    if not {"some avg10", "some avg60"} <= found.keys():
        return None
    return Stall(
        some_10s_ratio=found["some avg10"],
        some_60s_ratio=found["some avg60"],
        full_10s_ratio=found.get("full avg10", 0.0),
        full_60s_ratio=found.get("full avg60", 0.0),
    )


def _chosen(
    environment: Mapping[str, str], system_config: Mapping[str, Any] | None, name: str, default: Any
) -> Any:
    wanted = type(default)
    for value in ((system_config or {}).get(name), environment.get(f"RAY_{name}")):
        if value is None:
            continue
        if isinstance(value, str) and value.lower() in ("true", "false"):
            return wanted(value.lower() == "true")
        try:
            return wanted(value)
        except (TypeError, ValueError):
            continue
    return default
