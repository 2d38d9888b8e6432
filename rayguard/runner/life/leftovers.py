"""What a command left running: in its session, or elsewhere with the mark that it was started with.

The mark is one of its own and not an engine's (``rayguard.process.identity``): what a command that ended well
leaves on purpose, a cluster or a server, is nobody's to reap.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from rayguard.process.identity import ProcessId, owner_mark

if TYPE_CHECKING:
    from collections.abc import Iterator

MARK = "RAYGUARD_RUN"


def mark_of_run() -> dict[str, str]:
    """Return what a command and what it starts carry; ``SPT_NOENV`` keeps setproctitle from erasing it."""
    return {MARK: owner_mark(ProcessId.me()), "SPT_NOENV": "1"}


def left_by(leader: ProcessId) -> tuple[ProcessId, ...]:
    """Return what lives of the command ``leader``, itself left out. Its number must not be given out again.

    That is: while it runs, or nobody has waited for it yet.
    """
    entry = f"{MARK}={owner_mark(ProcessId.me())}".encode()
    return tuple(one for one in _others(leader) if _in_session(one, leader) or _carries(one, entry))


def _others(leader: ProcessId) -> Iterator[ProcessId]:
    for pid in psutil.pids():
        process = ProcessId.of(pid)
        if process is None or pid in (leader.pid, os.getpid()) or process.started < leader.started:
            continue
        if process.alive():
            yield process


def _in_session(process: ProcessId, leader: ProcessId) -> bool:
    with contextlib.suppress(OSError):
        return os.getsid(process.pid) == leader.pid and process.alive()
    return False


def _carries(process: ProcessId, entry: bytes) -> bool:
    own = Path(f"/proc/{process.pid}")
    with contextlib.suppress(OSError):  # gone, or another user's
        if own.stat().st_uid != os.geteuid():
            return False
        # Asked last: had the pid been used again while we read, it would be a stranger's mark.
        return entry in (own / "environ").read_bytes().split(b"\0") and ProcessId.of(process.pid) == process
    return False
