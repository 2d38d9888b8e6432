"""Ending processes to the last one: politely first, then by force, never a stranger.

Does not decide who must die, and does not free what they leave in ``/dev/shm``. The polite and the
forced step are separate: nothing that goes wrong in the first keeps the second from being taken.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psutil

from rayguard.process.deaths import dead, held_pidfd, open_pidfd
from rayguard.process.identity import ProcessId, owned_by

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_log = logging.getLogger("rayguard")

_CHECK_S = 0.05  # only where the kernel has no pidfd


def descendants(p: ProcessId) -> tuple[ProcessId, ...]:
    """Return the living children of ``p``, theirs, and so on; parents stand before their children.

    Empty once ``p`` is dead: the kernel has given its children to another parent by then.
    """
    if not p.alive():
        return ()
    try:
        children = psutil.Process(p.pid).children(recursive=True)
    except psutil.Error:
        return ()
    found = (ProcessId.of(child.pid) for child in children)
    return tuple(child for child in found if child is not None and child.alive())


def end(
    processes: Iterable[ProcessId],
    *,
    polite_s: float,
    force_s: float = 5.0,
    polite_signal: signal.Signals = signal.SIGTERM,
    mark: str | None = None,
) -> tuple[ProcessId, ...]:
    """End ``processes`` and what descends from them; return those that would not die.

    ``polite_s`` is how long they may take after ``polite_signal`` (0: force at once), ``force_s`` how
    long to wait for the kernel after SIGKILL. With ``mark``, only processes that carry it are touched,
    and those refused are logged. Never waits on (``waitpid``) a child: its exit code stays for its owner.

    Pass all that are known: the children of a core that has died already cannot be found from it. A
    stopped process takes no polite signal: force it at once.
    """
    with contextlib.ExitStack() as descriptors:
        targets = _Targets(mark, descriptors)
        targets.add(processes)
        if polite_s > 0:
            for target in targets.living():
                target.send(polite_signal)
            _wait(targets, polite_s)
        # Both polite and dying parents fork: look for children again while there is a parent to ask.
        targets.add(())
        for target in targets.living():
            target.send(signal.SIGKILL)
        _wait(targets, force_s)
        return tuple(target.process for target in targets.living())


@dataclass(frozen=True, slots=True)
class _Target:
    process: ProcessId
    fd: int | None

    def send(self, signum: signal.Signals) -> None:
        """Signal this very process or nobody: a pidfd cannot come to mean another process."""
        if not self.process.alive():  # for the kernels without pidfd: as short a race as can be
            return
        try:
            if self.fd is not None:
                signal.pidfd_send_signal(self.fd, signum)
            else:
                os.kill(self.process.pid, signum)
        except ProcessLookupError:
            pass  # it died by itself meanwhile
        except OSError as error:
            _log.warning("cannot send %s to process %d: %s", signum.name, self.process.pid, error)


class _Targets:
    """The processes to end, each opened and proved once, in the order they were found."""

    def __init__(self, mark: str | None, descriptors: contextlib.ExitStack) -> None:
        self._mark = mark
        self._descriptors = descriptors
        self._known: dict[ProcessId, _Target | None] = {}  # None: dead or refused

    def add(self, processes: Iterable[ProcessId]) -> None:
        """Take in ``processes`` and the present descendants of all that are admitted.

        Not of those refused: the children of a stranger are strangers, and ours are not to end with us.
        """
        for process in (*self._known, *processes):
            if process not in self._known:
                self._known[process] = self._admit(process)
            if self._known[process] is None:
                continue
            for member in descendants(process):
                if member not in self._known:
                    self._known[member] = self._admit(member)

    def living(self) -> Iterator[_Target]:
        """Yield the targets that still run."""
        return (t for t in self._known.values() if t is not None and not dead(t.process, t.fd))

    def _admit(self, process: ProcessId) -> _Target | None:
        if not process.alive():
            return None
        # Proved once, at the start: a dying process can lose its mark, never come by another's.
        if self._mark is not None and not owned_by(process, self._mark):
            _log.warning("process %d does not carry our mark: left alone", process.pid)
            return None
        if process == ProcessId.me():
            _log.error("asked to end the calling process %d: left alone", process.pid)
            return None
        try:
            fd = open_pidfd(process)
        except ProcessLookupError:
            return None
        if fd is not None:
            self._descriptors.callback(os.close, fd)
        return _Target(process, fd)


def _wait(targets: _Targets, limit_s: float) -> None:
    """Return when none of ``targets`` is left, at the latest after ``limit_s``."""
    deadline = time.monotonic() + limit_s
    while living := list(targets.living()):
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            return
        descriptors = [target.fd for target in living if target.fd is not None]
        if len(descriptors) < len(living):
            threading.Event().wait(min(_CHECK_S, left_s))
            continue
        poll = select.poll()
        for fd in descriptors:
            poll.register(fd, select.POLLIN)
        poll.poll(left_s * 1000)


def end_group_of(leader: ProcessId) -> tuple[int, ...]:
    """Kill what is left of the process group that ``leader`` led; return the pids.

    Ray puts each worker into a group of its own. A child that was forked, not executed, keeps the worker's
    connection to Ray open: Ray 2.60 then takes the worker for alive until that child ends, for hours if it is
    a data loader.

    Does nothing while the leader lives, or when its number belongs to another process already. A group's
    number is not given out again while it has members, so all of them come from this leader.
    """
    if leader.alive() or ProcessId.of(leader.pid) not in (None, leader):
        return ()
    ended = []
    for process in _members(leader):
        with contextlib.suppress(OSError), held_pidfd(process) as fd:  # gone meanwhile, or not ours
            if fd is not None and os.getpgid(process.pid) == leader.pid:
                signal.pidfd_send_signal(fd, signal.SIGKILL)
                ended.append(process.pid)
    return tuple(ended)


def _members(leader: ProcessId) -> Iterator[ProcessId]:
    for pid in psutil.pids():
        with contextlib.suppress(OSError):
            process = ProcessId.of(pid) if os.getpgid(pid) == leader.pid != pid else None
            if process is not None and process.started >= leader.started:
                yield process
