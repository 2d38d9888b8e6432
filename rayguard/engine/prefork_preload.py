"""The prefork server's own process, and what runs in the children that it forks.

Covers: importing vLLM once, refusing to serve when that left anything behind that a fork cannot
carry (threads, a CUDA context), answering fork requests with the loop of
``multiprocessing.forkserver``, and, in each child, taking over what its owner has *now* (environment,
CPU set, thread count). Does NOT start or stop the server and knows nothing of its owner: that is
``rayguard.engine.prefork``; the pipes between the two are ``rayguard.engine.prefork_process``.

Kept to the standard library until ``serve`` imports what it was told to: the owner pickles a
reference to ``adopt`` and must not pay for vLLM by that.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import re
import shutil
import signal
import sys
import threading
from collections import deque
from multiprocessing import connection, context, forkserver
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

VLLM_MODULES = (
    "vllm",
    "vllm.v1.engine.core",
    "vllm.v1.executor.multiproc_executor",
    "vllm.v1.executor.uniproc_executor",
)
EXIT_REFUSED = 3
DYNAMIC_THREADS = "TORCHINDUCTOR_CPP_DYNAMIC_THREADS"
_OWN_LOOP_THREADS = ("ZMQbg/",)  # libzmq's: they wait in epoll and are left out of a fork unharmed

# As ``vllm.utils.ompmultiprocessing`` writes them around the start of a worker; others are the user's.
_WORKER_CPUS = {
    "OMP_PLACES": r"^\{([\d,]+)\}$",
    "GOMP_CPU_AFFINITY": r"^([\d ]+)$",
    "KMP_AFFINITY": r"^granularity=fine,explicit,proclist=\[([\d,]+)\]$",
}

# Read by C code when a library is loaded, so that no Python hook sees it.
_READ_IN_C = re.compile(r"(OMP|KMP|GOMP|MKL|PYTORCH|MALLOC|LD)_")

_harmless_threads: set[int] = set()


def serve(arguments: str) -> None:
    """Run the server (in its own process) until its owner closes the alive pipe.

    ``arguments`` is JSON: ``listener``, ``alive``, ``report`` (file descriptors), ``modules`` and
    ``folder`` (holds the socket; removed at the end, whoever else is dead by then).
    """
    told: dict[str, Any] = json.loads(arguments)
    # A thread of the owner may have blocked SIGCHLD; exit codes would then never be sent.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    read: set[str] = set()
    try:
        refusal = preload(told["modules"], read)
    except BaseException as error:  # noqa: BLE001 - whatever an import raises, the owner must be told
        refusal = f"{type(error).__name__}: {error}"
    report = {"refusal": refusal, "read": sorted(read), "environ": dict(os.environ)}
    with connection.Connection(told["report"], readable=False) as pipe:
        pipe.send_bytes(json.dumps(report).encode())
    try:
        if not refusal:
            forkserver.main(told["listener"], told["alive"], [])
    except SystemExit:
        pass  # the owner let go of the alive pipe, or died
    finally:
        shutil.rmtree(told["folder"], ignore_errors=True)
        # Not sys.exit: finalizing an interpreter with torch and vLLM in it takes a second, in which
        # the engines forked from here would go on without anybody.
        os._exit(EXIT_REFUSED if refusal else 0)


def preload(modules: Iterable[str], read: set[str]) -> str:
    """Import ``modules``; return why this process must not be forked, or an empty string.

    Each environment variable that is looked up meanwhile goes into ``read``: some module has made a
    constant of it, and a child cannot take over a new value.
    """
    with _noting_lookups(read):
        for name in modules:
            importlib.import_module(name)
        if "vllm" in sys.modules:
            _import_worker()
            _fork_workers()
    gc.collect()
    gc.freeze()  # else each child's first collection touches, and so copies, every page
    return _unfit_to_fork()


@contextlib.contextmanager
def _noting_lookups(read: set[str]) -> Iterator[None]:
    environ = type(os.environ)
    getitem, iterate = environ.__getitem__, environ.__iter__
    copying: deque[Any] = deque()  # a copy of all takes each name, then each value in the same order

    def noting_getitem(self: Any, key: Any) -> Any:
        if copying and copying[0] == key:
            copying.popleft()
        else:
            copying.clear()
            read.add(os.fsdecode(key))  # ``os.environb`` is of this class too
        return getitem(self, key)

    def noting_iterate(self: Any) -> Iterator[Any]:
        copying.clear()
        for key in iterate(self):
            copying.append(key)
            yield key

    environ.__getitem__, environ.__iter__ = noting_getitem, noting_iterate  # type: ignore[method-assign]
    try:
        yield
    finally:
        environ.__getitem__, environ.__iter__ = getitem, iterate  # type: ignore[method-assign]


def read_in_c(environ: Iterable[str]) -> set[str]:
    """Return the names of ``environ`` that C libraries read when they are loaded."""
    return {name for name in environ if _READ_IN_C.match(name)}


def adopt(environ: dict[str, str], cpus: set[int], preparation: dict[str, Any]) -> dict[str, Any]:
    """Take over the owner's present (first thing in a child), then hand on ``preparation``.

    Without this a child would live in the environment that the *server* was started with.
    """
    for name in os.environ.keys() - environ.keys():
        del os.environ[name]
    os.environ.update(environ)
    os.sched_setaffinity(0, cpus)
    # What the user's own forkserver is, in this process, must not be ours.
    own: Any = forkserver._forkserver  # noqa: SLF001
    os.close(own._forkserver_alive_fd)  # noqa: SLF001
    own._forkserver_alive_fd = own._forkserver_address = None  # noqa: SLF001
    _fit_inductor()
    fit_threads()
    _harmless_threads.update(_threads())  # torch's pool, which knows how to be forked
    return preparation


def fit_threads() -> None:
    """Give torch the thread count that it would have read from OMP_NUM_THREADS at its import.

    In a forked process libgomp was loaded long before that was set for it: a worker would run with
    another number of threads (and so sums in another order) than the same worker spawned.
    """
    torch = sys.modules.get("torch")
    count = os.environ.get("OMP_NUM_THREADS", "")
    if torch is not None and count.isdigit() and int(count) not in {0, torch.get_num_threads()}:
        torch.set_num_threads(int(count))


def _fit_inductor() -> None:
    """Redo the one constant that vLLM itself changes in the owner (its CPU platform) after the preload."""
    inductor = sys.modules.get("torch._inductor.config")
    if inductor is not None:
        inductor.cpp.dynamic_threads = os.environ.get(DYNAMIC_THREADS) == "1"


def fit_cpus() -> None:
    """Go to the CPUs that vLLM's CPU backend chose for this worker, in the words of three OpenMPs."""
    for name, pattern in _WORKER_CPUS.items():
        if found := re.search(pattern, os.environ.get(name, "")):
            os.sched_setaffinity(0, {int(cpu) for cpu in re.findall(r"\d+", found[1])})
            return


class WorkerProcess(context.ForkProcess):
    """An engine worker, forked from its engine core."""

    def run(self) -> None:
        """Fit the threads before anything uses them."""
        fit_threads()
        fit_cpus()
        super().run()


class WorkerContext(context.ForkContext):
    """The fork context of vLLM's default on CUDA, for workers whose core was itself forked."""

    Process = WorkerProcess


def _import_worker() -> None:
    """Import the worker of this machine's platform; vLLM names its class only in a config."""
    from vllm.platforms import current_platform  # noqa: PLC0415 - vLLM is imported by ``preload`` only

    if current_platform.is_cpu():
        importlib.import_module("vllm.v1.worker.cpu_worker")
    elif current_platform.is_cuda_alike():
        importlib.import_module("vllm.v1.worker.gpu_worker")


def _fork_workers() -> None:
    """Let engine cores forked from here fork their workers, wherever that is safe."""
    executor = sys.modules["vllm.v1.executor.multiproc_executor"]
    own_way = executor.get_mp_context

    def get_mp_context() -> Any:
        return WorkerContext() if not _unfit_to_fork_worker() else own_way()

    executor.get_mp_context = get_mp_context  # type: ignore[attr-defined]


def _unfit_to_fork() -> str:
    """Return what a fork of this process would break on, or an empty string."""
    strangers = _threads().keys() - {threading.get_native_id()}
    if strangers:
        return f"the preload left {len(strangers)} threads behind, which a fork would lose"
    return _cuda_state()


def _unfit_to_fork_worker() -> str:
    known = {thread.native_id for thread in threading.enumerate()} | _harmless_threads
    strangers = {
        tid for tid, name in _threads().items() if tid not in known and not name.startswith(_OWN_LOOP_THREADS)
    }
    if strangers:  # an OpenMP pool, most likely: its first use in the worker would hang
        return f"{len(strangers)} threads of unknown make are running in the engine core"
    return _cuda_state()


def _cuda_state() -> str:
    torch = sys.modules.get("torch")
    if torch is None:
        return ""
    for device in (torch.cuda, getattr(torch, "xpu", None)):
        if device is not None and (device.is_initialized() or device._is_in_bad_fork()):  # noqa: SLF001
            return f"{device.__name__} is initialised, which a forked process cannot use"
    return ""


def _threads() -> Mapping[int, str]:
    """Return this process's threads by id, with the names that the kernel has."""
    found: dict[int, str] = {}
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # it ended while we looked
            found[int(task.name)] = (task / "comm").read_text().strip()
    return found
