"""The prefork server's own process: imports vLLM once, then forks on request.

Covers: the imports, which environment variables they made constants of, refusing to serve when they
left something behind that a fork cannot carry (threads, a CUDA context), and answering with the loop of
``multiprocessing.forkserver``. Does NOT start or stop the server: ``server``; what its
children do first: ``child``; the protocol between owner and server: ``process``.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import shutil
import signal
import sys
import threading
from collections import deque
from multiprocessing import connection, forkserver
from typing import TYPE_CHECKING, TypedDict

from rayguard.engine.prefork.child import TOLD_OF_FORKS, device_state, fork_workers, threads
from rayguard.engine.prefork.left_engines import Owners

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

VLLM_MODULES = (
    "vllm",
    "vllm.v1.engine.core",
    "vllm.v1.executor.multiproc_executor",
    "vllm.v1.executor.uniproc_executor",
)
CLIENT_MODULES = ("vllm.v1.engine.async_llm",)  # of the process that owns an engine
TITLE = "rayguard::prefork"
EXIT_REFUSED = 3


class _Arguments(TypedDict):
    listener: int
    alive: int
    report: int
    modules: list[str]
    folder: str
    apart: bool
    keep_s: float


def serve(arguments: str) -> None:
    """Run the server (in its own process) until its owner closes the alive pipe.

    ``arguments`` is JSON: ``listener``, ``alive``, ``report`` (file descriptors), ``modules``,
    ``folder`` (holds the socket; removed at the end, whoever else is dead by then), ``apart`` (it was
    forked to be nobody's child, and says first which process it is) and ``keep_s`` (for which it then waits
    for another owner).
    """
    given: _Arguments = json.loads(arguments)
    began = dict(os.environ)
    pipe = connection.Connection(given["report"], readable=False)
    if given["apart"]:
        pipe.send_bytes(str(os.getpid()).encode())
    with contextlib.suppress(ImportError):
        # Before any variable changes: later it would not find the arguments' place, and engines forked
        # from here would be called "python" for ever.
        importlib.import_module("setproctitle").setproctitle(TITLE)
    # A thread of the owner may have blocked SIGCHLD; exit codes would then never be sent.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    read: set[str] = set()
    try:
        refusal = preload(given["modules"], read)
    except BaseException as error:  # noqa: BLE001 - whatever an import raises, the owner must be told
        refusal = f"{type(error).__name__}: {error}"
    report = {"refusal": refusal, "read": sorted(read), "environ": dict(os.environ)}
    with contextlib.suppress(OSError), pipe:  # an owner that is dead by now does not read
        pipe.send_bytes(json.dumps(report).encode())
    try:
        alive, owners = (
            None if refusal else given["alive"],
            Owners(given["keep_s"]) if given["apart"] else None,
        )
        while alive is not None:
            with contextlib.suppress(SystemExit):  # the owner let go of the alive pipe, or died
                forkserver.main(os.dup(given["listener"]), alive, [])
            told = {**report, "began": began}
            alive = None if owners is None else owners.next_one(given["listener"], told)
    finally:
        shutil.rmtree(given["folder"], ignore_errors=True)
        # Not sys.exit: finalizing an interpreter with torch and vLLM in it takes a second, in which
        # the engines forked from here would go on without anybody.
        os._exit(EXIT_REFUSED if refusal else 0)


def preload(modules: Iterable[str], read: set[str]) -> str:
    """Import ``modules``; return why this process must not be forked, or an empty string.

    Each environment variable that is looked up meanwhile goes into ``read``: some module has made a
    constant of it, and a child cannot take over a new value.
    """
    with noting_lookups(read), without_collections():
        for name in modules:
            importlib.import_module(name)
        if "vllm" in sys.modules:
            _import_worker()
            fork_workers()
    gc.collect()
    gc.freeze()  # else each child's first collection touches, and so copies, every page
    return unfit()


@contextlib.contextmanager
def without_collections() -> Iterator[None]:
    """Import inside: what imports make stays; to look through it again and again is a fifth of their time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextlib.contextmanager
def noting_lookups(read: set[str]) -> Iterator[None]:
    """Import inside: the names of environment variables that are looked up go into ``read``."""
    environ = type(os.environ)
    getitem, iterate = environ.__getitem__, environ.__iter__
    copying: deque[object] = deque()  # a copy of all takes each name, then each value in the same order

    def noting_getitem(self: os._Environ[str], key: str) -> str:
        if copying and copying[0] == key:
            copying.popleft()
        else:
            copying.clear()
            read.add(os.fsdecode(key))  # ``os.environb`` is of this class too
        return getitem(self, key)

    def noting_iterate(self: os._Environ[str]) -> Iterator[str]:
        copying.clear()
        for key in iterate(self):
            copying.append(key)
            yield key

    environ.__getitem__, environ.__iter__ = noting_getitem, noting_iterate  # type: ignore[method-assign]
    try:
        yield
    finally:
        environ.__getitem__, environ.__iter__ = getitem, iterate  # type: ignore[method-assign]


def _import_worker() -> None:
    """Import the worker of this machine's platform; vLLM names its class only in a config."""
    from vllm.platforms import current_platform  # noqa: PLC0415 - vLLM is imported by ``preload`` only

    if current_platform.is_cpu():
        importlib.import_module("vllm.v1.worker.cpu_worker")
    elif current_platform.is_cuda_alike():
        importlib.import_module("vllm.v1.worker.gpu_worker")


def unfit() -> str:
    """Return why this process, with what it has imported, must not be forked, or an empty string."""
    return _unfit_to_fork() or _unfit_when_forked()


def _unfit_to_fork() -> str:
    """Return what a fork of this process would break on, or an empty string."""
    own = threading.get_native_id()
    strangers = [name for tid, name in threads().items() if tid != own and name not in TOLD_OF_FORKS]
    if strangers:
        names = ", ".join(sorted(set(strangers)))
        return f"the preload left {len(strangers)} threads behind, which a fork would lose: {names}"
    return device_state()


def _unfit_when_forked() -> str:
    """Fork once to see: that the parent touched CUDA (counting devices does), torch knows in a child only."""
    pid = os.fork()
    if pid == 0:
        os._exit(1 if device_state() else 0)
    return "its children could not use CUDA" if os.waitpid(pid, 0)[1] else ""
