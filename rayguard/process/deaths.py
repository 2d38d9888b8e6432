"""Being told at once when a process dies: one thread, no polling.

Does not end processes (``tree.py``) and does not notice a process that lives but does nothing
(``rayguard.engine.hangs.watchdog``).

The kernel wakes a pidfd's waiter about a millisecond after the death, whoever the parent is; a parent's
``waitpid`` knows only its own children, and polling is either slow or costly.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import select
import struct
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from rayguard.process.identity import ProcessId

_log = logging.getLogger("rayguard")

OnDeath = Callable[[ProcessId], None]
CHECK_S = 0.2  # only where the kernel has no pidfd
_CLOSE_S = 5.0
_LOOK_S = 0.01
# struct pidfd_info of <linux/pidfd.h>: what is asked for, ids, and at its end the exit status.
_INFO = struct.Struct("=QQ11Ii")
_INFO_EXIT = 1 << 3
_GET_INFO = 3 << 30 | _INFO.size << 16 | 0xFF << 8 | 11


def open_pidfd(process: ProcessId) -> int | None:
    """Return a pidfd that is certainly of ``process``, or None where the kernel cannot give one.

    Raises:
        ProcessLookupError: it is gone, or its pid belongs to another process now.
    """
    try:
        fd = os.pidfd_open(process.pid)
    except ProcessLookupError:
        raise
    except (AttributeError, OSError):  # before Linux 5.3, forbidden by seccomp, or out of descriptors
        return None
    # The order matters: who has the right start time now had the pid when the descriptor was opened.
    if process.alive():
        return fd
    os.close(fd)
    raise ProcessLookupError(f"process {process.pid} (started {process.started}) is gone")


@contextlib.contextmanager
def held_pidfd(process: ProcessId) -> Iterator[int | None]:
    """Hold what ``open_pidfd`` returns until the end of the block; raises what that does."""
    fd = open_pidfd(process)
    try:
        yield fd
    finally:
        if fd is not None:
            os.close(fd)


def dead(process: ProcessId, pidfd: int | None) -> bool:
    """Say whether ``process`` is gone to its last thread.

    The descriptor knows better than ``/proc``, where a process is a zombie as soon as its first thread
    is, while the others may still hold the device.
    """
    if pidfd is None:
        return not process.alive()
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))


def ends(process: ProcessId, *, soon_s: float, limit_s: float = 60.0) -> bool:
    """Wait for the end of ``process``: ``soon_s``, or ``limit_s`` while it is exiting; say whether it came.

    A process that is killed closes its connections before it is dead: one with a device by seconds.
    """
    began, pause = time.monotonic(), threading.Event()
    while process.alive():
        if time.monotonic() - began > (limit_s if process.exiting() else soon_s):
            return False
        pause.wait(_LOOK_S)
    return True


def note_exit(process: ProcessId, pidfd: int | None) -> None:
    """Remember how a dead process ended (``process.exitcode()``), where the kernel tells strangers.

    While it is a zombie, ``/proc`` does; once its parent has asked, its pidfd does (since Linux 6.15).
    """
    if process.exitcode() is not None or pidfd is None:
        return
    try:
        *_, status = told = _INFO.unpack(fcntl.ioctl(pidfd, _GET_INFO, _INFO.pack(_INFO_EXIT, *[0] * 13)))
    except OSError:  # an older kernel; or it is a zombie still, that hides its end from us
        return
    if told[0] & _INFO_EXIT:
        process.ended_with(os.waitstatus_to_exitcode(status))


@dataclass(slots=True)
class _Watched:
    process: ProcessId
    fd: int | None
    callbacks: list[OnDeath] = field(default_factory=list)


class DeathWatch:
    """Calls back once for each death, from its own daemon thread, started by the first ``watch``.

    A fork takes the object along but not the thread: the child must make its own ``DeathWatch``, and
    ``watch`` in a child raises RuntimeError, because its epoll set would still be the parent's.
    """

    # Invariant: a descriptor is in the epoll set exactly while its process is in _watched.

    def __init__(self, name: str = "rayguard-deaths") -> None:
        self._name = name
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._watched: dict[ProcessId, _Watched] = {}
        self._thread: threading.Thread | None = None
        self._epoll: select.epoll | None = None
        self._wake = -1
        self._closed = False

    def watch(self, process: ProcessId, on_death: OnDeath) -> None:
        """Call ``on_death(process)`` when it dies; soon, from the thread, if it is dead already.

        Several callbacks for one process are each called once.
        """
        if os.getpid() != self._pid:
            raise RuntimeError("this DeathWatch belongs to the parent process: make one after the fork")
        with self._lock:
            if self._closed:
                raise RuntimeError("this DeathWatch is closed")
            epoll = self._epoll or self._start()
            watched = self._watched.get(process)
            if watched is None:
                watched = self._watched[process] = _Watched(process, _fd_or_none(process))
                if watched.fd is not None:
                    epoll.register(watched.fd, select.EPOLLIN)
                else:
                    os.eventfd_write(self._wake, 1)  # dead already, or to be checked from now on
            watched.callbacks.append(on_death)

    def unwatch(self, process: ProcessId) -> None:
        """Forget ``process``; a callback that the thread has already begun still ends."""
        with self._lock:
            self._forget(process)

    def close(self) -> None:
        """End the thread and forget everything; no callback begins after this returns."""
        with self._lock:
            thread = self._thread
            # Only once: the ending thread closes the eventfd, and its number may be another file's then.
            if thread is not None and not self._closed and os.getpid() == self._pid:
                os.eventfd_write(self._wake, 1)
            self._closed = True
        if thread is not None and thread is not threading.current_thread():
            thread.join(_CLOSE_S)

    def _start(self) -> select.epoll:
        self._epoll = epoll = select.epoll()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        epoll.register(self._wake, select.EPOLLIN)
        self._thread = threading.Thread(target=self._run, args=(epoll,), name=self._name, daemon=True)
        self._thread.start()
        return epoll

    def _run(self, epoll: select.epoll) -> None:
        try:
            while not self._closed:
                with self._lock:
                    unseen = any(w.fd is None for w in self._watched.values())
                # No deadline where the kernel tells us: close() and watch() write to the eventfd.
                ready = {fd for fd, _ in epoll.poll(CHECK_S if unseen else -1)}
                if self._wake in ready:
                    os.eventfd_read(self._wake)
                for watched in self._take_dead(ready):
                    self._call_back(watched)
        finally:
            self._release(epoll)

    def _take_dead(self, ready: set[int]) -> list[_Watched]:
        """Take out what is dead; asks each candidate again, as its descriptor may be a newer one."""
        with self._lock:
            candidates = [w for w in self._watched.values() if w.fd is None or w.fd in ready]
            gone = [w for w in candidates if dead(w.process, w.fd)]
            for watched in gone:
                note_exit(watched.process, watched.fd)
                self._forget(watched.process)
        return gone

    def _call_back(self, watched: _Watched) -> None:
        for on_death in watched.callbacks:
            if self._closed:
                return
            try:
                on_death(watched.process)
            except Exception:  # noqa: BLE001 - a watcher runs here: one bad callback must not blind it
                _log.exception("the callback for the death of process %d raised", watched.process.pid)

    def _forget(self, process: ProcessId) -> None:
        watched = self._watched.pop(process, None)
        if watched is not None and watched.fd is not None:
            assert self._epoll is not None
            # Before the close: a forked child holds the descriptor too, and would keep it in the set.
            self._epoll.unregister(watched.fd)
            os.close(watched.fd)

    def _release(self, epoll: select.epoll) -> None:
        with self._lock:
            self._closed = True
            for process in list(self._watched):
                self._forget(process)
            epoll.close()
            os.close(self._wake)


def _fd_or_none(process: ProcessId) -> int | None:
    try:
        return open_pidfd(process)
    except ProcessLookupError:
        return None  # the thread's next look finds it dead
