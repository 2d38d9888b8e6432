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
import functools
import os
import threading
import weakref
from typing import TYPE_CHECKING, Any

import psutil

from rayguard.engine.prefork import preload
from rayguard.engine.prefork.life import Life
from rayguard.engine.prefork.process import PreforkContext, complain

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from multiprocessing.context import BaseContext


class PreforkServer:
    """The server of the calling process. Methods may be called from any thread and do not raise."""

    def __init__(self, modules: Sequence[str] = preload.VLLM_MODULES) -> None:
        self._modules = tuple(modules)
        self._lock = threading.Lock()
        self._lives: list[Life] = []  # the last one serves; on older ones engines still hang
        self._refused = False
        weakref.finalize(self, _end_all, self._lives, os.getpid())

    def start(self) -> None:
        """See to it that a server runs that fits the present environment; return at once.

        The preload goes on in the background, on a core of its own for some ten seconds. A server that
        refused is not tried again: what its preload left behind, the next would too.
        """
        with self._lock:
            life = self._lives[-1] if self._lives else None
            self._hear(life, timeout_s=0.0)
            fits = life is not None and life.alive and not life.refusal(0.0) and not life.changed()
            if self._refused or fits:
                return
            try:
                self._lives.append(Life(self._modules))
            except Exception as error:  # noqa: BLE001 - the edge: the user's build goes on without a server
                complain(f"the server could not be started: {error!r}")
            self._sweep()

    def ready(self, timeout_s: float = 0.0) -> bool:
        """Say whether it can fork, waiting up to ``timeout_s`` for a preload that is under way."""
        life = self._last()
        return self._hear(life, timeout_s) and life is not None and life.alive

    @property
    def alive(self) -> bool:
        """Whether the process runs; it may still be importing."""
        life = self._last()
        return life is not None and life.alive

    @property
    def pid(self) -> int | None:
        """The process, or None."""
        life = self._last()
        return life.pid if life is not None and life.alive else None

    def changed(self) -> tuple[str, ...]:
        """Return the environment variables that the preload read and that are others now."""
        life = self._last()
        return () if life is None else life.changed()

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

    def rss_bytes(self) -> int:
        """Return the resident memory of the server; pages shared with its engines count fully."""
        return self._memory("rss")

    def uss_bytes(self) -> int:
        """Return the memory that ending the server would free now."""
        return self._memory("uss")

    def stop(self, deadline_s: float = 5.0) -> None:
        """End the server, and with it the engines that were forked from it; by force at the deadline."""
        with self._lock:
            while self._lives:
                self._lives.pop().end(deadline_s)

    def _last(self) -> Life | None:
        with self._lock:
            return self._lives[-1] if self._lives else None

    def _hear(self, life: Life | None, timeout_s: float) -> bool:
        """Say whether ``life`` reported that it serves; the first bad report is complained about."""
        if life is None or self._refused:
            return False
        refusal = life.refusal(timeout_s)
        if refusal and life.complain_once(f"engines are spawned, the server does not serve: {refusal}"):
            self._refused = life.refused
        return refusal == ""

    def _sweep(self) -> None:
        """End the lives that nothing needs: all but the last, once no engine hangs on them."""
        for life in self._lives[:-1]:
            if not life.alive or not life.children():
                life.end(deadline_s=1.0)
                self._lives.remove(life)

    def _memory(self, kind: str) -> int:
        pid = self.pid
        try:
            return 0 if pid is None else int(getattr(psutil.Process(pid).memory_full_info(), kind))
        except psutil.Error:
            return 0


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
    patched = context is not None and _patch.apply()
    before, _building.context = getattr(_building, "context", None), context if patched else None
    try:
        yield patched
    finally:
        _building.context = before
        if patched:
            _patch.undo()
        server.start()  # the first build of a process changes its environment: be ready for the next


class _Patch:
    """vLLM's ``get_mp_context``, replaced while at least one build goes on."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._builds = 0
        self._own: Any = None
        self._ours: Any = None

    def apply(self) -> bool:
        try:
            utils = _imported()
            with self._lock:
                if self._builds == 0:
                    self._own = utils.get_mp_context
                    self._ours = utils.get_mp_context = _choosing(self._own)
                self._builds += 1
        except Exception as error:  # noqa: BLE001 - the edge: unknown vLLM internals must not stop a build
            complain(f"this vLLM cannot be told to fork its engine core: {error!r}")
            return False
        return True

    def undo(self) -> None:
        utils = _imported()
        with self._lock:
            self._builds -= 1
            # Unless someone patched over ours: it then stays below theirs, and chooses nothing.
            if self._builds == 0 and utils.get_mp_context is self._ours:
                utils.get_mp_context = self._own


def _imported() -> Any:
    """Return the module of vLLM that starts its engine cores; the first time this imports all of vLLM."""
    with preload.without_collections():
        from vllm.v1.engine import utils  # noqa: PLC0415 - vLLM is optional, and costs 10 s

    return utils


def _choosing(own: Any) -> Any:
    @functools.wraps(own)
    def get_mp_context() -> BaseContext:
        # Asked in any case: it passes Ray's address on to the children, and syncs ROCm's variables.
        own_context: BaseContext = own()
        chosen: BaseContext | None = getattr(_building, "context", None)
        return own_context if chosen is None else chosen

    return get_mp_context


def _end_all(lives: list[Life], owner_pid: int) -> None:
    """At the end of the server object or the interpreter; not in a process forked from the owner."""
    while lives and owner_pid == os.getpid():
        lives.pop().end(deadline_s=1.0)


_patch = _Patch()
_building = threading.local()
