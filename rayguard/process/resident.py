"""The memory of one process, this one or another, as ``statm`` tells it: 13 us, cheap for every second.

Does not know trees, nodes, devices or Ray.

``private`` is resident - shared: USS to a few percent for a process that did not fork, but for the files that
it alone has mapped (0.1 GB of libraries where torch is loaded); too high for forked children that still share
untouched pages with their parent. ``rayguard.memory.probes.process`` counts shared pages right, for 0.3-3 ms.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from rayguard.process.identity import ProcessId

_PROC = Path("/proc")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True, kw_only=True)
class Resident:
    """Bytes in RAM. ``shared`` are pages of files and of shared memory, the object store's above all."""

    private: int
    shared: int


def resident(pid: int, *, proc: Path = _PROC) -> Resident | None:
    """Return what ``pid`` holds now, None where it is dead or cannot be read."""
    try:
        _, pages, shared = map(int, (proc / str(pid) / "statm").read_bytes().split()[:3])
    except (OSError, ValueError):
        return None
    if pages == 0:  # a zombie, or a thread of the kernel: no memory to speak of
        return None
    return Resident(private=max(0, pages - shared) * _PAGE_BYTES, shared=shared * _PAGE_BYTES)


def resident_of(process: ProcessId) -> Resident | None:
    """Return what this very process holds now; None once it is dead, whoever has its pid then."""
    found = resident(process.pid)
    # Asked last: had the pid been reused before, we would have read a stranger's.
    return found if ProcessId.of(process.pid) == process else None
