"""What a flight recorder reads of the machine by itself: its memory, and the kernel's kills.

Whose memory it is and what to do about it is ``rayguard.memory``; its watcher may feed the recorder instead.
What cannot be read is 0 or None and never an error: a container may hide any of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rayguard.process.cgroup import memory_groups, numbers, oom_kills, text, usage


@dataclass(frozen=True, slots=True)
class Group:
    """One memory cgroup, of version 1 or 2, as a directory."""

    directory: Path

    @classmethod
    def mine(cls, root: Path = Path("/")) -> Group | None:
        """Return the memory cgroup of the calling process, or the nearest one above that can be seen."""
        found = memory_groups(text(root / "proc/self/cgroup"), root / "sys/fs/cgroup")
        places = () if found is None else (*found[1], found[0])
        return next((cls(place) for place in places if place.is_dir()), None)

    def kills(self) -> int | None:
        """Return how many of its processes the kernel killed because memory was used up."""
        return oom_kills(self.directory)

    def limited(self, below: int) -> list[Group]:
        """Return the groups from this one upwards that limit memory to less than ``below`` bytes."""
        chain = [Group(place) for place in (self.directory, *self.directory.parents)]
        return [group for group in chain if (limit := group.limit()) is not None and limit < below]

    def limit(self) -> int | None:
        """Return the limit in bytes; None without one."""
        found = usage(self.directory)
        return None if found is None else found.limit

    def ratio(self) -> float:
        """Return the share of the limit in use, less cached files as Ray counts it; 0 where unknown."""
        found = usage(self.directory)
        return 0.0 if found is None else found.used / found.limit


@dataclass(frozen=True, slots=True)
class MachineReading:
    """How full the machine (or the limit that comes first) is, 0 to 1, and the kernel's kills so far."""

    node_ratio: float
    group_kills: int | None
    node_kills: int | None


class Machine:
    """What a process can see of the memory around it."""

    def __init__(self, root: Path = Path("/")) -> None:
        self.group = Group.mine(root)
        self._root = root
        total_kib = numbers(root / "proc/meminfo").get("MemTotal:", 0)
        self._limits = [] if self.group is None else self.group.limited(total_kib << 10)

    def read(self) -> MachineReading:
        """Read it all: about 0.1 ms."""
        return MachineReading(
            node_ratio=max((node_ratio(self._root), *(limit.ratio() for limit in self._limits))),
            group_kills=None if self.group is None else self.group.kills(),
            node_kills=node_kills(self._root),
        )


def node_ratio(root: Path = Path("/")) -> float:
    """Return the share of the machine's memory that is not available, 0 where unknown."""
    kib = numbers(root / "proc/meminfo")
    total, available = kib.get("MemTotal:"), kib.get("MemAvailable:")
    return 1.0 - available / total if total and available is not None else 0.0


def node_kills(root: Path = Path("/")) -> int | None:
    """Return how many processes the kernel of this machine killed because memory was used up."""
    return numbers(root / "proc/vmstat").get("oom_kill")
