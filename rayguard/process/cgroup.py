"""The memory files of a cgroup of either version, and of the kernel's like them. What cannot be read is None.

Which cgroup counts is for who asks: Ray looks at the root (``rayguard.memory.probes.node``), a flight
recorder at its own (``rayguard.process.flight.readings``).
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import NamedTuple

from rayguard.private import closed_after

UNLIMITED = 1 << 62  # version 1 says "no limit" with 2**63 less a page
_MAX_BYTES = 1 << 16


class Used(NamedTuple):
    """Bytes in use, without cached files as Ray counts it, and the limit."""

    used: int
    limit: int


def usage(directory: Path, *, swap: bool = False) -> Used | None:
    """Return use and limit of one cgroup; None without a limit. ``swap``: of both together (version 1)."""
    version_2 = (directory / "memory.max").exists()
    prefix = "memory.memsw" if swap else "memory"
    limit = number(directory / ("memory.max" if version_2 else f"{prefix}.limit_in_bytes"))
    if not limit or limit >= UNLIMITED:
        return None
    used = number(directory / ("memory.current" if version_2 else f"{prefix}.usage_in_bytes"))
    stat = numbers(directory / "memory.stat")
    total = "" if version_2 else "total_"
    inactive, active = stat.get(f"{total}inactive_file"), stat.get(f"{total}active_file")
    if used is None or inactive is None or active is None:
        return None
    return Used(min(limit, max(0, used - inactive - active)), limit)


def memory_groups(content: str, mount: Path) -> tuple[Path, tuple[Path, ...]] | None:
    """Return the root of the memory cgroups below ``mount``, and those of a process, innermost first.

    Of the process whose ``/proc/<pid>/cgroup`` is ``content``; without the root. None where memory has none.
    """
    for line in content.splitlines():
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        if "memory" in controllers.split(","):
            root = mount / "memory"
        elif not controllers and (mount / "cgroup.controllers").exists():
            root = mount
        else:  # another controller, or the new hierarchy of a hybrid machine: no memory in it
            continue
        inside = Path(path.strip("/"))
        parts = (part for part in (inside, *inside.parents) if part != Path() and ".." not in part.parts)
        # A path of the machine is not there inside a container: its own cgroup is the root then.
        return root, tuple(root / part for part in parts if (root / part / "memory.stat").exists())
    return None


def oom_kills(directory: Path) -> int | None:
    """Return how many of its processes the kernel killed because memory was used up."""
    for name in ("memory.events", "memory.oom_control"):
        count = numbers(directory / name).get("oom_kill")
        if count is not None:
            return count
    return None


def text(path: Path) -> str:
    """Return a short file of the kernel's; '' where it is missing, forbidden, or its feature switched off."""
    # Pressure that was switched off at boot opens, and cannot be read.
    with contextlib.suppress(OSError), closed_after(os.open(path, os.O_RDONLY | os.O_CLOEXEC)) as file:
        return os.read(file, _MAX_BYTES).decode("ascii", "replace")
    return ""


def number(path: Path) -> int | None:
    """Return the number that is all of a file."""
    found = text(path).strip()
    return int(found) if found.isdecimal() else None


def numbers(path: Path) -> dict[str, int]:
    """Return the numbers of a file with lines of a name and a number (and a unit)."""
    fields = (line.split() for line in text(path).splitlines())
    return {one[0]: int(one[1]) for one in fields if len(one) > 1 and one[1].isdecimal()}
