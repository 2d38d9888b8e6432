"""Forks the workers of a test's cluster from one process that has imported what they need. See ``worker_start``.

The first worker with given variables starts that process, and it ends with its raylet. A worker is what it would be
otherwise: a child of the raylet, with those variables and arguments, and a pid of its own, which it tells Ray itself.
What differs: all have the same layout of memory, by which rayguard's agent tells who was forked by whom, the same
seed of hashes, pages that they share, and modules that the collector does not see. Not for tests of the agent, of memory
or of the heap.
"""

from __future__ import annotations

import contextlib
import marshal
import os
import socket
import sys
from zlib import crc32

FORK_FROM = "--fork-from"
_RAYLET, _JOB = "RAY_RAYLET_PID", "RAY_JOB_ID"
_CLONE3, _PARENT, _SET_TID, _CLEAR_TID = 435, 0x00008000, 0x01000000, 0x00200000
_TITLE = "rayguard's tests: forks Ray's workers"
_ASKING_S = 30.0  # from a connection to all of its order; who is stopped meanwhile starts by itself
# Its variables but for the job's, which alone may be another one; that; its arguments; whether it leads a process
# group; and its OOM score.
Order = tuple[dict[str, str], str, list[str], bool, str]


def forked(rest: list[str]) -> bool:
    """Have a worker forked; False where that cannot be. Waits until the other process has its imports."""
    if _RAYLET not in os.environ:
        return False
    variables, job = _variables()
    with open("/proc/self/oom_score_adj") as file:  # noqa: PTH123
        order: Order = (variables, job, rest, os.getpgid(0) == os.getpid(), file.read())
    name = f"\0rayguard-tests-{os.environ[_RAYLET]}-{crc32(repr(sorted(variables.items())).encode())}"
    try:
        with socket.socket(socket.AF_UNIX) as asked:
            if not _reached(asked, name):
                _start(name, rest)
                asked.connect(name)
            asked.sendall(marshal.dumps(order))
            asked.shutdown(socket.SHUT_WR)
            return bool(asked.recv(1))
    except OSError:
        return False


def _variables() -> tuple[dict[str, str], str]:
    """Return those of this process, and apart from them the job."""
    found = dict(os.environ)
    return found, found.pop(_JOB, "")


def _reached(asked: socket.socket, name: str) -> bool:
    try:
        asked.connect(name)
    except ConnectionRefusedError:
        return False
    return True


def _start(name: str, rest: list[str]) -> None:
    """Start the process that forks, unless another worker was first."""
    with socket.socket(socket.AF_UNIX) as door:
        try:
            door.bind(name)
        except OSError:  # in use
            return
        door.listen(64)
        if sibling() == 0:
            os.set_inheritable(door.fileno(), True)
            os.execv(sys.executable, [sys.executable, __file__, f"{FORK_FROM}={door.fileno()}", *rest])


def sibling() -> int:
    """Fork a process that has the same parent: Ray's workers are children of their raylet. Return as ``os.fork``.

    Raises:
        OSError: It cannot be, and nothing was forked.
    """
    import ctypes
    import threading

    libc, python = ctypes.PyDLL(None), ctypes.pythonapi
    libc.pthread_self.restype = ctypes.c_void_p
    thread, tid = libc.pthread_self(), threading.get_native_id()
    # Where the C library keeps the thread's id, which ``fork`` would write anew.
    found = [at for at in range(thread, thread + 1024, 4) if ctypes.c_int.from_address(at).value == tid]
    if len(found) != 1:
        raise OSError("another C library than is known here")
    order = (ctypes.c_uint64 * 8)(_PARENT | _SET_TID | _CLEAR_TID, 0, *found)
    python.PyOS_BeforeFork()
    pid = libc.syscall(_CLONE3, ctypes.byref(order), ctypes.c_size_t(ctypes.sizeof(order)))
    if pid == 0:
        python.PyOS_AfterFork_Child()
    else:
        python.PyOS_AfterFork_Parent()
    if pid < 0:
        raise OSError("clone3")
    return pid


def main() -> None:
    """Fork what is asked for until the raylet ends."""
    import select

    from worker_start import FORKED

    door = socket.socket(fileno=int(sys.argv[1].partition("=")[2]))
    raylet, (variables, _) = os.pidfd_open(int(os.environ[_RAYLET])), _variables()
    sys.path[0] = os.path.dirname(sys.argv[2])  # noqa: PTH120
    unfit = _prepared([name for name in os.environ[FORKED].split(",") if name])
    if unfit:
        print(f"workers are started one by one: {unfit}", file=sys.stderr, flush=True)
    while raylet not in select.select([door, raylet], [], [])[0]:
        asked, _ = door.accept()
        with asked:
            order = _read(asked)
            if unfit or order is None or order[0] != variables:
                continue
            pid = sibling()
            if pid:
                with contextlib.suppress(OSError):  # who asked was ended
                    asked.sendall(b"1")
                continue
        door.close()
        os.close(raylet)
        _become(*order[1:])
    os._exit(0)  # not at leisure: to take torch apart takes a second


def _prepared(names: list[str]) -> str:
    """Import what workers need; return why they cannot be forked, or an empty string."""
    import gc
    import importlib

    gc.disable()  # what imports make stays: it is looked through neither meanwhile nor in each worker
    try:
        raylet = importlib.import_module("ray._raylet")
        raylet.setproctitle(_TITLE)  # it finds the arguments' place only as long as no variable has changed
        for name in ("ray._private.node", "ray.actor", "ray._private.runtime_env.setup_hook", *names):
            importlib.import_module(name)
    except BaseException as error:  # whatever an import raises: workers start all the same
        return f"{type(error).__name__}: {error}"
    gc.freeze()
    gc.enable()
    threads = len(os.listdir("/proc/self/task"))  # noqa: PTH208
    return f"a fork would lose {threads - 1} threads of what they import" if threads > 1 else ""


def _read(asked: socket.socket) -> Order | None:
    """Return what is ordered; None where who asked was ended or stopped meanwhile."""
    asked.settimeout(_ASKING_S)
    said = b""
    with contextlib.suppress(OSError, EOFError, ValueError):
        while part := asked.recv(65_536):
            said += part
        return marshal.loads(said)
    return None


def _become(job: str, rest: list[str], leads: bool, score: str) -> None:
    """Be the worker, for good."""
    import runpy
    import threading

    os.environ[_JOB] = job
    if leads:
        os.setpgid(0, 0)
    with open("/proc/self/oom_score_adj", "w") as file:  # noqa: PTH123
        file.write(score)
    threading.main_thread()._set_native_id()  # Python 3.11 leaves that of the process it was forked from
    if numpy_random := sys.modules.get("numpy.random"):
        numpy_random.seed()  # ``random`` does so by itself; all workers would draw the same
    sys.argv[:] = rest
    runpy.run_path(rest[0], run_name="__main__")
    sys.exit()


if __name__ == "__main__":
    main()
