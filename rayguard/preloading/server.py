"""The process that has the imports, and forks Ray's workers from itself.

``python -m rayguard.preloading.server DOOR MODULES WORKER``: the listening socket, names with commas, the
path of Ray's own program for workers. It ends with its raylet, and a minute after its last worker. One that
must not fork says so to each who asks, and has given its memory back.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import os
import select
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from rayguard.preloading import order
from rayguard.preloading.sibling import sibling

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from collections.abc import Set as AbstractSet

_IDLE_S = 60.0
_LOOK_S = 5.0
_REFUSES = "-"
_TOO_SOON_S, _FAILURES = 10.0, 2  # a worker that has come to work lives longer, of two in a row one
_THREAD_ENDS_S = 5.0
# Than workers, which Ray starts at 15: a quarter of a core where all are busy. With SCHED_IDLE an import of
# 5 s was not done after 30.
_NICER, _LAST = 5, 19
# What an actor with an engine of vLLM's imports beside: a third of a second, where a new life takes one.
_WITH_VLLM = (
    "rayguard.engine.vllm.engine",
    "rayguard.engine.supervision.slot",
    "rayguard.actors.guard.mixins",
    "rayguard.actors.guard.wrappers",
    "rayguard.actors.life.publishing",
    "rayguard.actors.memory.memory_guard",
    "rayguard.metrics.exporter",
    "rayguard.pool.actors.pool_actor",
)
_NVML = "PYTORCH_NVML_BASED_CUDA_CHECK"
# While modules are imported. Ray sets the first in an actor, too late for what is imported already. With the
# second, NVML is asked whether there is a GPU: CUDA that was started can be used by no fork.
_WHILE_IMPORTING = {"OMP_NUM_THREADS": "1", _NVML: "1"}


class ForkServer:
    """Answers at the door. ``unfit``: it must not fork; ``read``: variables that its imports looked up."""

    def __init__(
        self,
        door: socket.socket,
        *,
        unfit: bool,
        read: AbstractSet[str] = frozenset(),
        workers: Iterable[int] = (),
        differs: Callable[[bytes], str] | None = None,
    ) -> None:
        """Begin; it is not started twice.

        ``workers``: those that started by themselves before. ``differs``: what of its imports is not as an
        actor says that its own are (``later.Wanted``). It forks no more then, nor where its forks fail.
        """
        self._door, self._unfit, self._read, self._differs = door, unfit, read, differs
        self._raylet = os.pidfd_open(int(os.environ[order.RAYLET]))
        self._workers: list[int] = []  # pidfds
        self._began: dict[int, float] = {}  # when, by pidfd: of those that it forked
        self._failed = 0
        for pid in workers:
            with contextlib.suppress(ProcessLookupError):
                self._workers.append(os.pidfd_open(pid))
        self._needed = time.monotonic()

    def serve(self) -> order.WorkerOrder | None:
        """Return in the worker what it is to be, in this process None when nobody needs it any more."""
        while time.monotonic() - self._needed < _IDLE_S:
            watched = [self._door.fileno(), self._raylet, *self._workers]
            ready = select.select(watched, [], [], _LOOK_S)[0]
            if self._raylet in ready:
                break
            for worker in set(ready) & set(self._workers):
                self._workers.remove(worker)
                self._judge(worker)
                os.close(worker)
            if self._workers:
                self._needed = time.monotonic()
            if self._door.fileno() in ready:
                self._needed = time.monotonic()
                with contextlib.suppress(OSError, ValueError):  # who asked is gone, or is nobody of ours
                    if (found := self.asked()) is not None:
                        return found
        return None

    def _judge(self, dead: int) -> None:
        """Let workers start by themselves where forked ones end at once, again and again."""
        if (began := self._began.pop(dead, None)) is None or self._differs is None:
            return
        self._failed = self._failed + 1 if time.monotonic() - began < _TOO_SOON_S else 0
        if self._failed >= _FAILURES:
            self._fork_no_more(f"{_FAILURES} forked ones ended within seconds")

    def _fork_no_more(self, why: str) -> None:
        if not self._unfit:
            self._unfit = True
            print(f"rayguard: workers are started one by one: {why}", file=sys.stderr, flush=True)  # noqa: T201

    def asked(self) -> order.WorkerOrder | None:
        """Answer one who asks; return in the worker what it is to be. Raises ``OSError``, ``ValueError``."""
        asked, _ = self._door.accept()
        with asked:
            asked.settimeout(order.ANSWER_S)
            if not order.same_user(asked):
                return None
            asked.sendall(order.REFUSED if self._unfit else order.READY)
            ordered = None if self._unfit else self._ordered(order.line(asked))
            if ordered is None:
                return None
            if ordered.differs_in(self._read):  # what was made of it holds for another rank
                asked.sendall(order.REFUSED)
                return None
            pid = sibling()
            if pid:
                with contextlib.suppress(ProcessLookupError):  # who asked was gone, and so it has ended
                    self._workers.append(os.pidfd_open(pid))
                    self._began[self._workers[-1]] = time.monotonic()
                return None
            try:
                self._close()
                asked.sendall(order.FORKED)
                told = asked.recv(1)
            except OSError:
                told = b""
            if told != order.GO:
                os._exit(0)  # who asked has given up: it starts the worker itself
            return ordered

    def _ordered(self, said: bytes) -> order.WorkerOrder | None:
        """Return what is ordered; hear what an actor has imported."""
        if self._differs is not None and said.startswith(order.IMPORTED):
            if why := self._differs(said):
                self._fork_no_more(why)
            return None
        return order.read(said) if said else None

    def _close(self) -> None:
        """Put down in a worker what is the server's."""
        self._door.close()
        for one in (self._raylet, *self._workers):
            os.close(one)


def prepare(names: Sequence[str], read: set[str], *, at_leisure: bool = False) -> str:
    """Import what workers need; return why they cannot be forked, or an empty string.

    The names of the variables that are looked up meanwhile go into ``read``. ``at_leisure``: at a lower
    priority than those that serve.
    """
    from rayguard.engine.prefork import preload  # noqa: PLC0415 - not where it refuses

    imports = functools.partial(_import, names, read)
    try:
        if at_leisure:
            _at_leisure(imports)
        else:
            imports()
    except BaseException as error:  # noqa: BLE001 - whatever an import raises: workers start all the same
        return f"{type(error).__name__}: {error}"
    gc.collect()
    gc.freeze()  # else each worker's first collection touches, and so copies, every page
    return preload.unfit()


def _import(names: Sequence[str], read: set[str]) -> None:
    from rayguard.engine.prefork import preload  # noqa: PLC0415 - not where it refuses
    from rayguard.faults.catalog import default_catalog  # noqa: PLC0415 - likewise
    from rayguard.faults.counsel import counsels  # noqa: PLC0415 - likewise
    from rayguard.ray_internals import forked_worker  # noqa: PLC0415 - likewise

    with preload.noting_lookups(read), preload.without_collections(), _fit_to_fork():
        forked_worker.prepare()
        for name in names:
            importlib.import_module(name)
        if "vllm" in sys.modules:
            for name in (*preload.CLIENT_MODULES, *_WITH_VLLM):
                importlib.import_module(name)
            # By which the next life says what the last one died of, before it is made.
            default_catalog()
            counsels()


def _at_leisure(imports: Callable[[], None]) -> None:
    """Import in a thread that gives way, and ends: without privileges no thread comes back from that."""

    def begin() -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), min(_LAST, os.nice(0) + _NICER))

    with ThreadPoolExecutor(1, initializer=begin) as thread:
        thread.submit(imports).result()
    until = time.monotonic() + _THREAD_ENDS_S
    while len(os.listdir("/proc/self/task")) > 1 and time.monotonic() < until:  # noqa: PTH208 - as above
        threading.Event().wait(0.001)  # Python is done with it, the kernel a moment later


@contextlib.contextmanager
def _fit_to_fork() -> Iterator[None]:
    """Import inside: libraries make no thread for each core, as in an actor, and do not start CUDA."""
    added = {name: value for name, value in _WHILE_IMPORTING.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            if name != _NVML or "vllm" not in sys.modules:
                os.environ.pop(name, None)


def main() -> None:
    """Fork what is asked for."""
    door, names, worker = socket.socket(fileno=int(sys.argv[1])), sys.argv[2], sys.argv[3]
    sys.path[0] = os.path.dirname(worker)  # noqa: PTH120 - as it would be in a worker
    read: set[str] = set()
    if names != _REFUSES and (why := prepare(names.split(","), read)):
        print(f"rayguard: workers are started one by one: {why}", file=sys.stderr, flush=True)  # noqa: T201
        os.set_inheritable(door.fileno(), True)  # noqa: FBT003 - Python's
        command = ["-m", "rayguard.preloading.server", str(door.fileno()), _REFUSES, worker]
        os.execv(sys.executable, [sys.executable, *command])  # noqa: S606 - no shell is needed
    serve(door, read, unfit=names == _REFUSES)


def serve(
    door: socket.socket,
    read: AbstractSet[str],
    workers: Iterable[int] = (),
    differs: Callable[[bytes], str] | None = None,
    *,
    unfit: bool = False,
) -> None:
    """Fork what is asked for, until nobody needs it. Returns only in a worker, that is over."""
    try:
        ordered = ForkServer(door, unfit=unfit, read=read, workers=workers, differs=differs).serve()
    except BaseException as error:  # noqa: BLE001 - a worker must never go on as a second server
        print(f"rayguard: what forks workers ends: {error!r}", file=sys.stderr, flush=True)  # noqa: T201
        os._exit(1)
    if ordered is None:
        os._exit(0)  # not at leisure: to take torch apart takes a second
    _become(ordered)


def _become(ordered: order.WorkerOrder) -> None:
    """Be the worker, for good."""
    from rayguard.engine.prefork.child import fit_threads  # noqa: PLC0415 - it is imported by now
    from rayguard.ray_internals import forked_worker  # noqa: PLC0415 - likewise

    ordered.set_variables()
    if ordered.leads:
        os.setpgid(0, 0)
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:  # noqa: PTH123
        file.write(ordered.oom_score)  # written as the file is closed
    if numpy_random := sys.modules.get("numpy.random"):
        numpy_random.seed()  # ``random`` does so by itself; all workers would draw the same
    forked_worker.run(ordered.arguments, fit_threads)


if __name__ == "__main__":
    main()
