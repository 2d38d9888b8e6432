"""What a dead leader's process group still holds.

Ray puts each worker into a process group of its own (the worker is the leader). A child that was forked, not
executed, keeps the worker's connection to Ray open: Ray 2.60 then takes the worker for alive until that child
ends, for hours if it is a data loader. Ending processes that one knows otherwise is ``tree``.
"""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import psutil

from rayguard.process.identity import ProcessId

if TYPE_CHECKING:
    from collections.abc import Iterator


def end_group_of(leader: ProcessId) -> tuple[int, ...]:
    """Kill what is left of the group that ``leader`` led; return the pids.

    Does nothing while the leader lives, or when its number belongs to another process already. A group's
    number is not given out again while it has members, so all of them come from this leader.
    """
    holder = ProcessId.of(leader.pid)
    if leader.alive() or (holder is not None and holder != leader):
        return ()
    ended = []
    for process in _members(leader):
        try:
            fd = os.pidfd_open(process.pid)
        except (OSError, AttributeError):
            continue
        try:
            if process.alive() and os.getpgid(process.pid) == leader.pid:
                signal.pidfd_send_signal(fd, signal.SIGKILL)
                ended.append(process.pid)
        except OSError:  # gone meanwhile, or not ours
            continue
        finally:
            os.close(fd)
    return tuple(ended)


def _members(leader: ProcessId) -> Iterator[ProcessId]:
    for pid in psutil.pids():
        try:
            in_group = os.getpgid(pid) == leader.pid
        except OSError:
            continue
        process = ProcessId.of(pid) if in_group and pid != leader.pid else None
        if process is not None and process.started >= leader.started:
            yield process
