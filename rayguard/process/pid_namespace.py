"""Where a pid and a start time mean something, and whether a process of there still lives.

Finer than ``ProcessId.alive``, which is for processes that we know to be of here: who reaps must not take
"hidden", "in another container" or "out of file descriptors" for "dead".
"""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path

from rayguard.process.cleanup.verdict import ProcessLife
from rayguard.process.identity import ProcessId

_PROC = Path("/proc")


@lru_cache(maxsize=1)
def world() -> str:
    """Name this boot, pid namespace and time namespace (which shifts start times); '' when unknown."""
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {namespaces_of(os.getpid())}"
    except OSError:
        return ""


def namespaces_of(pid: int) -> str:
    """Return the pid and time namespace of ``pid``; raises ``OSError`` when it may not be asked."""
    own = _PROC / str(pid) / "ns"
    try:
        return f"{(own / 'pid').readlink()} {(own / 'time').readlink()}"
    except FileNotFoundError:
        return f"{(own / 'pid').readlink()} -"  # a kernel before 5.6 has no time namespaces


def life_of(process: ProcessId | None, where: str) -> ProcessLife:
    """Say whether ``process``, whose pid was given in the world ``where``, lives."""
    if process is None or not where or where != world():
        return ProcessLife.UNKNOWN
    state = process.state()
    if state in {"Z", "X", "x"}:
        # The first thread of a process can end before the others, and shows as a zombie then.
        return ProcessLife.ALIVE if _threads(process.pid) > 1 else ProcessLife.DEAD
    if state:
        return ProcessLife.ALIVE
    if ProcessId.of(process.pid) is None and _exists(process.pid):
        return ProcessLife.UNKNOWN  # /proc hides other users' processes, or we are out of descriptors
    return ProcessLife.DEAD


def _threads(pid: int) -> int:
    try:
        return sum(1 for _ in (_PROC / str(pid) / "task").iterdir())
    except FileNotFoundError:
        return 0
    except OSError:
        return 2  # not to be told: as good as alive


def _exists(pid: int) -> bool:
    """Ask the kernel, not /proc; another user's process counts."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OverflowError:  # a pid that no kernel gives
        return False
    except OSError:
        return True
    return True
