"""What runs in the children of the prefork server, before and beside the engine.

Covers: taking over what the owner has *now* (environment, CPU set, thread count), and letting an engine
core fork its workers where that is safe. Does NOT import vLLM or serve: ``rayguard.engine.prefork.preload``.

Standard library only: the owner pickles a reference to ``adopt`` and must not pay for more by that.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import re
import sys
import threading
from multiprocessing import context, forkserver
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

DYNAMIC_THREADS = "TORCHINDUCTOR_CPP_DYNAMIC_THREADS"
# Of NVIDIA's driver, its boards (Jetson) and WSL; of ROCm; of Intel's.
DEVICE_FILES = ("/dev/nvidiactl", "/dev/nvmap", "/dev/dxg", "/dev/kfd", "/dev/dri")
_LOOKS, _LOOK_S = 50, 0.01
# Of an allocator (pyarrow brings one) that is told of forks: in a child it does this work as memory is freed.
TOLD_OF_FORKS = ("jemalloc_bg_thd",)
# libzmq's: they wait in epoll and are left out of a fork unharmed
_OWN_LOOP_THREADS = ("ZMQbg/", *TOLD_OF_FORKS)
# As ``vllm.utils.ompmultiprocessing`` writes them around the start of a worker; others are the user's.
_WORKER_CPUS = {
    "OMP_PLACES": r"^\{([\d,]+)\}$",
    "GOMP_CPU_AFFINITY": r"^([\d ]+)$",
    "KMP_AFFINITY": r"^granularity=fine,explicit,proclist=\[([\d,]+)\]$",
}

_harmless_threads: set[int] = set()
server_claims: list[int] = []  # descriptors by which the server shows whose it is; a child shows that itself


def adopt(environ: dict[str, str], cpus: set[int], preparation: dict[str, object]) -> dict[str, object]:
    """Take over the owner's present (first thing in a child), then hand on ``preparation``.

    Without this a child would live in the environment that the *server* was started with.
    """
    for name in os.environ.keys() - environ.keys():
        del os.environ[name]
    os.environ.update(environ)
    os.sched_setaffinity(0, cpus)
    # What the user's own forkserver is, in this process, must not be ours.
    own = vars(forkserver)["_forkserver"]
    os.close(own._forkserver_alive_fd)  # noqa: SLF001
    own._forkserver_alive_fd = own._forkserver_address = None  # noqa: SLF001
    while server_claims:
        os.close(server_claims.pop())
    _fit_inductor()
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed()  # ``random`` does so by itself; all engines of a server would draw the same
    fit_threads()
    _harmless_threads.update(threads())  # torch's pool, which knows how to be forked
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


def fork_workers() -> None:
    """Let engine cores forked from here fork their workers, wherever that is safe."""
    executor = sys.modules["vllm.v1.executor.multiproc_executor"]
    own_way: Callable[[], context.BaseContext] = executor.get_mp_context

    def get_mp_context() -> context.BaseContext:
        return WorkerContext() if _can_fork_workers() else own_way()

    executor.get_mp_context = get_mp_context  # type: ignore[attr-defined]


@functools.cache
def _can_fork_workers() -> bool:
    """Decide once per core: vLLM asks at each use, and half of an executor made to fork leaves orphans.

    Its message queue has just started threads, which carry their names a moment later only: measured,
    the first question got another answer than the second, and the worker kept its own death pipe open.
    """
    for _ in range(_LOOKS):
        why = _unfit_to_fork_worker()
        if not why:
            return True
        threading.Event().wait(_LOOK_S)
    logging.getLogger("rayguard").warning("engine workers are spawned, not forked: %s", why)
    return False


def _unfit_to_fork_worker() -> str:
    known = {thread.native_id for thread in threading.enumerate()} | _harmless_threads
    strangers = {
        tid for tid, name in threads().items() if tid not in known and not name.startswith(_OWN_LOOP_THREADS)
    }
    if strangers:  # an OpenMP pool, most likely: its first use in the worker would hang
        return f"{len(strangers)} threads of unknown make are running in the engine core"
    return device_state()


def device_state() -> str:
    """Return what keeps a fork of this process from using its accelerator, or an empty string."""
    torch = sys.modules.get("torch")
    # A torch with CUDA, where pip found no other, looks for GPUs all the same.
    if torch is None or _on_the_cpu() or not has_accelerator():
        return ""
    for device in (torch.cuda, getattr(torch, "xpu", None)):
        if device is not None and (device.is_initialized() or device._is_in_bad_fork()):  # noqa: SLF001
            return f"{device.__name__} is initialised, which a forked process cannot use"
    return ""


def has_accelerator() -> bool:
    """Say whether this machine, or container, has a device of CUDA's, ROCm's or Intel's."""
    return any(Path(name).exists() for name in DEVICE_FILES)


def _on_the_cpu() -> bool:
    """Say whether this vLLM is built for the CPU."""
    platforms = sys.modules.get("vllm.platforms")
    return platforms is not None and bool(platforms.current_platform.is_cpu())


def threads() -> Mapping[int, str]:
    """Return this process's threads by id, with the names that the kernel has."""
    found: dict[int, str] = {}
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # it ended while we looked
            found[int(task.name)] = (task / "comm").read_text().strip()
    return found
