"""The prefork server: engine cores forked in 0.1 s from a process that has imported vLLM already.

Most of an engine restart is imports (about 7 s in the core and again in its worker). A clean, executed
process imports them once; each engine core is forked from it, each worker from its core.
``PreforkServer`` starts, watches and stops that process; ``installed`` makes vLLM use it for a build.

Does NOT build engines (``rayguard.engine.vllm.engine``). The process: ``life``; asking it to fork:
``process``; what it runs: ``preload``; its children: ``child``. What fails
here ends in vLLM's own way, logged and counted as a guard error of ``prefork``.

The life of an engine hangs on its server: the core is the server's child, and with the parent-death
signal that our vLLM plugin sets it dies with it. The owner is told as of any dead core (exit code 255),
and the next build starts another server. The server itself ends with its owner, by a pipe that only
the owner holds.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from typing import TYPE_CHECKING

from rayguard.engine.prefork import preload
from rayguard.engine.prefork.life import InheritedLife, ServerLife
from rayguard.engine.prefork.process import PreforkContext, complain
from rayguard.engine.vllm.patch import wrap

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from multiprocessing.context import BaseContext
    from types import ModuleType


class PreforkServer:
    """The server of the calling process. Methods may be called from any thread and do not raise."""

    def __init__(self, modules: Sequence[str] = preload.VLLM_MODULES, *, keep_s: float = 0.0) -> None:
        """Begin without a process. ``keep_s``: as for ``ServerLife``; its engines may outlive us then too."""
        self._modules, self._keep_s = tuple(modules), keep_s
        self._lock = threading.Lock()
        self._lives: list[ServerLife] = []  # the last one serves; on older ones engines still hang
        weakref.finalize(self, _end_all, self._lives, 1.0)

    def start(self) -> None:
        """See to it that a server runs that fits the present environment; return at once.

        The preload goes on in the background, on a core of its own for some ten seconds. A server that
        refused is not tried again: what its preload left behind, the next would too.
        """
        with self._lock:
            life = self._lives[-1] if self._lives else None
            refusal = None if life is None else life.refusal(0.0)
            fits = life is not None and life.alive and not refusal and not life.changed()
            if fits or (life is not None and life.refused):
                return
            try:
                self._lives.append(ServerLife(self._modules, keep_s=self._keep_s))
            except Exception as error:  # noqa: BLE001 - the edge: the user's build goes on without a server
                complain(f"the server could not be started: {error!r}")
            self._sweep()

    def inherit(self, address: str) -> bool:
        """Take over the server of a dead owner; say whether it serves us now."""
        with self._lock:
            try:
                self._lives.append(InheritedLife(address, self._keep_s))
            except (OSError, ValueError, KeyError, TypeError) as error:
                complain(f"the server of the life before this one is not taken over: {error!r}")
                return False
            return True

    @property
    def address(self) -> str:
        """Where it listens; '' for none."""
        life = self._last()
        return "" if life is None else life.address

    def ready(self, timeout_s: float = 0.0) -> bool:
        """Say whether it can fork, waiting up to ``timeout_s`` for a preload that is under way."""
        life = self._last()
        return life is not None and life.refusal(timeout_s) == "" and life.alive

    @property
    def alive(self) -> bool:
        """Whether the process runs; it may still be importing."""
        return self.pid is not None

    @property
    def pid(self) -> int | None:
        """The process, or None."""
        life = self._last()
        return life.pid if life is not None and life.alive else None

    def context(self) -> BaseContext | None:
        """Return a multiprocessing context whose processes the server forks; None when it cannot."""
        life = self._last()
        if life is None or not self.ready():
            return None
        if life.stopped():
            complain(f"the server {life.pid} is stopped by a signal: it cannot fork")
            return None
        if changed := life.changed():  # constants in the preloaded modules were made of the old values
            complain(f"{', '.join(changed)} changed since the server started: starting another one")
            self.start()
            return None
        return PreforkContext(life.address)

    def stop(self, deadline_s: float = 5.0) -> None:
        """End the server, and with it the engines that were forked from it; by force at the deadline."""
        with self._lock:
            _end_all(self._lives, deadline_s)

    def _last(self) -> ServerLife | None:
        with self._lock:
            return self._lives[-1] if self._lives else None

    def _sweep(self) -> None:
        """End the lives that nothing needs: all but the last, once no engine hangs on them."""
        for life in self._lives[:-1]:
            if not life.alive or not life.children():
                life.end(deadline_s=1.0)
                self._lives.remove(life)


@contextlib.contextmanager
def installed(server: PreforkServer, *, wait_s: float = 0.0) -> Iterator[bool]:
    """Let the engines that this thread builds be forked from ``server``; tell whether they will be.

    ``wait_s`` is how long to wait for a preload under way. Imports vLLM meanwhile: for those who use it.
    Other threads, and everybody after the block, keep vLLM's own way.
    """
    server.start()
    if wait_s and server.alive:
        with contextlib.suppress(Exception):  # whoever uses it then says what is wrong
            _imported()  # takes as long as the preload under way
    context = server.context() if server.ready(wait_s) else None
    patched = context is not None and _patched()
    before, _building.context = getattr(_building, "context", None), context if patched else None
    try:
        yield patched
    finally:
        _building.context = before
        server.start()  # the first build of a process changes its environment: be ready for the next


def _patched() -> bool:
    """Let vLLM ask us which context to use; once, for good: who builds without a server gets vLLM's own."""
    try:
        wrap(_imported(), "get_mp_context", _chosen)
    except Exception as error:  # noqa: BLE001 - the edge: unknown vLLM internals must not stop a build
        complain(f"this vLLM cannot be told to fork its engine core: {error!r}")
        return False
    return True


def _imported() -> ModuleType:
    """Return the module of vLLM that starts its engine cores; the first time this imports all of vLLM."""
    with preload.without_collections():
        from vllm.v1.engine import utils  # noqa: PLC0415 - vLLM is optional, and costs 10 s

    imported: ModuleType = utils
    return imported


def _chosen(own: Callable[[], BaseContext]) -> BaseContext:
    # Asked in any case: it passes Ray's address on to the children, and syncs ROCm's variables.
    own_context = own()
    chosen: BaseContext | None = getattr(_building, "context", None)
    return own_context if chosen is None else chosen


def _end_all(lives: list[ServerLife], deadline_s: float) -> None:
    while lives:
        lives.pop().end(deadline_s)


_building = threading.local()
