"""A multiprocessing context whose processes are forked from a prefork server.

Covers: asking the server for a fork, handing the process object over, exit codes; each step with a
deadline, each failure answered by starting the process as vLLM would (spawn). Does NOT start, watch or
stop the server: that is ``rayguard.engine.prefork.server``; what runs in the child: ``child``.

It speaks the protocol of ``multiprocessing.forkserver`` (the same from Python 3.10 to 3.14, as our
server asks for no challenge) to a server of its own: the user's forkserver, one per process and shared
with, say, a DataLoader, is never touched.
"""

from __future__ import annotations

import io
import logging
import os
import select
import socket
import sys
import threading
import time
from multiprocessing import (
    connection,
    context,
    forkserver,
    popen_forkserver,
    reduction,
    resource_tracker,
    spawn,
    util,
)
from typing import TYPE_CHECKING, Any

import psutil

from rayguard.engine.prefork import child
from rayguard.recovery.tally import TALLY

if TYPE_CHECKING:
    from multiprocessing import popen_spawn_posix
    from multiprocessing.process import BaseProcess

log = logging.getLogger("rayguard")

FORK_DEADLINE_S = 15.0  # measured: 0.1 s; a machine that swaps may take long, a stopped server for ever
SERVER_DIED = 255  # what multiprocessing reports for a child whose server can no longer tell
_RAY_WORKER = os.path.join("ray", "_private", "workers", "default_worker.py")  # noqa: PTH118 - a suffix


class Popen(popen_forkserver.Popen):
    """One process forked from the server that listens at ``address``."""

    _fds: list[int]

    def __init__(self, process_obj: BaseProcess, address: str, deadline_s: float = FORK_DEADLINE_S) -> None:
        self._address = address
        self._until = time.monotonic() + deadline_s
        self._child: psutil.Process | None = None
        self._reading = threading.Lock()
        super().__init__(process_obj)

    def _launch(self, process_obj: BaseProcess) -> None:
        data = self._pickled(process_obj)
        self.sentinel, pipe = _request(self._address, self._fds)
        self.finalizer = util.Finalize(self, _close, (os.dup(pipe), self.sentinel))
        try:
            # The pid first, the data then (multiprocessing does it the other way round): had we given
            # up on a slow server after the data was out, a second engine core would come to life.
            self._wait_for(self.sentinel, select.POLLIN)
            self.pid = forkserver.read_signed(self.sentinel)
            self._child = psutil.Process(self.pid)
            self._write(pipe, data)
        except BaseException:
            if self._child is not None:
                self._child.kill()
            self.finalizer()  # closes our ends: a child that comes late finds no data and exits
            raise
        finally:
            os.close(pipe)

    def _pickled(self, process_obj: BaseProcess) -> memoryview:
        preparation = spawn.get_preparation_data(process_obj.name)
        if str(preparation.get("init_main_from_path", "")).endswith(_RAY_WORKER):
            # It would import Ray in each child, for no name of the user's.
            del preparation["init_main_from_path"]
        buffer = io.BytesIO()
        context.set_spawning_popen(self)
        try:
            reduction.dump(_Adopt(preparation), buffer)
            reduction.dump(process_obj, buffer)
        finally:
            context.set_spawning_popen(None)
        return buffer.getbuffer()

    def _write(self, pipe: int, data: memoryview) -> None:
        os.set_blocking(pipe, False)
        while data:
            self._wait_for(pipe, select.POLLOUT)
            data = data[os.write(pipe, data) :]

    def _wait_for(self, fd: int, event: int) -> None:
        poll = select.poll()
        poll.register(fd, event)
        if not poll.poll(max(0.0, self._until - time.monotonic()) * 1_000):
            raise TimeoutError("the server took too long to fork; is it stopped?")

    def poll(self, flag: int = os.WNOHANG) -> int | None:
        """Return the exit code, None while the process runs.

        A process whose server died is reported as dead (255), as vLLM's monitors need it; should it
        have survived its server, it is made true.
        """
        if flag != os.WNOHANG and self.returncode is None:
            connection.wait([self.sentinel])
        with self._reading:  # vLLM's monitor and ours ask at once: the second would read the pipe's end
            code = super().poll(os.WNOHANG)
        if code == SERVER_DIED and self._child is not None:
            child, self._child = self._child, None
            if child.is_running():
                child.kill()
        return code


class PreforkProcess(context.ForkServerProcess):
    """A process of ``PreforkContext``; without a server (in a child, or when it fails) it is spawned."""

    address: str | None = None

    def _Popen(self, process_obj: BaseProcess) -> Popen | popen_spawn_posix.Popen:  # type: ignore[override]  # noqa: N802
        address, self.address = self.address, None  # not for the child, which unpickles this object
        if address is not None and not _wants_own_executable(process_obj):
            try:
                return Popen(process_obj, address)
            except Exception as error:  # noqa: BLE001 - the edge to vLLM: its process must start all the same
                complain(f"{process_obj.name} is spawned instead of forked: {error!r}")
        return context.SpawnProcess._Popen(process_obj)  # noqa: SLF001


class PreforkContext(context.ForkServerContext):
    """What ``multiprocessing.get_context`` would return if it knew our server."""

    def __init__(self, address: str) -> None:
        super().__init__()
        self._address = address

    def Process(self, *args: Any, **kwargs: Any) -> PreforkProcess:  # type: ignore[override]  # noqa: N802
        """Return a process that ``start`` forks from the server."""
        process = PreforkProcess(*args, **kwargs)
        process.address = self._address
        return process


def resource_tracker_pid() -> int | None:
    """Return the helper of multiprocessing that serves this whole process; None where there is none."""
    return getattr(vars(resource_tracker)["_resource_tracker"], "_pid", None)


def complain(what: str) -> None:
    """Log and count a failure of prefork; vLLM's own way is taken."""
    TALLY.guard_error("prefork")
    log.warning("rayguard prefork: %s", what)


class _Adopt:
    """Pickles to a call of ``adopt`` in the child, which runs before anything else is unpickled."""

    def __init__(self, preparation: dict[str, object]) -> None:
        self._preparation = preparation

    def __reduce__(self) -> tuple[object, ...]:
        return child.adopt, (dict(os.environ), os.sched_getaffinity(0), self._preparation)


def _request(address: str, fds: list[int]) -> tuple[int, int]:
    """Ask for a fork; return the pipe that tells pid and exit code, and the one that takes the data."""
    status, child_status = os.pipe()
    child_data, data = os.pipe()
    # In the place of the server's alive pipe: a child that held it would keep the server from seeing
    # its owner's death, and so itself, as its life hangs on the server's.
    tracker = resource_tracker.getfd()
    assert tracker is not None, "getfd starts the tracker where there is none"
    no_alive = os.open(os.devnull, os.O_RDONLY)
    try:
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(FORK_DEADLINE_S)
            client.connect(address)
            reduction.sendfds(client, [child_data, child_status, no_alive, tracker, *fds])
    except BaseException:
        _close(status, data)
        raise
    finally:
        _close(child_data, child_status, no_alive)
    return status, data


def _close(*fds: int) -> None:
    for fd in fds:
        os.close(fd)


def _wants_own_executable(process_obj: BaseProcess) -> bool:
    """NUMA binding wraps the Python executable in numactl: only an executed process obeys it."""
    config = getattr(process_obj, "_kwargs", {}).get("vllm_config")
    return bool(getattr(getattr(config, "parallel_config", None), "numa_bind", False)) or (
        "--numa-bind" in sys.argv
    )
