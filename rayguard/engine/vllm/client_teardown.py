"""Letting go of vLLM's client of a core whose processes are gone: its sockets, tasks and threads.

Does not end processes: ``rayguard.process.tree``.
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING

from rayguard.engine.deadline import bounded

if TYPE_CHECKING:
    from rayguard.engine.vllm.interfaces import ClientResources, EngineCoreClient

_LOOK_S = 0.01
_CLOSED_S = 2.0
_kept: list[object] = []  # frontends that must not be garbage-collected


def let_go(core: EngineCoreClient, deadline_s: float, *, waits: bool, frontend: object = None) -> None:
    """Shut vLLM's client down, and see to it that its sockets are closed.

    ``waits`` says that they can be closed now: those of an ``AsyncLLM`` close on its loop, if it runs. Else
    ``frontend`` is kept for ever: collected before, it would wait for ever in its ``__del__``.

    vLLM's own shutdown may raise half-way (it looks for a process that ended just then: psutil.NoSuchProcess,
    measured), here or in its monitor thread, and does not try again. Whichever thread then collects the
    client waits for the open socket for ever, in the ``__del__`` of its context.
    """
    if not waits:
        _kept.append(frontend)
    failed = True
    with contextlib.suppress(Exception):
        bounded(lambda: core.shutdown(timeout=0.0), deadline_s)
        failed = False
    resources: ClientResources | None = getattr(core, "resources", None)
    socket = getattr(resources, "input_socket", None)
    if resources is None or socket is None or (not waits and not failed):
        return
    until = time.monotonic() + (0.0 if failed else _CLOSED_S)
    while not socket.closed and time.monotonic() < until:
        threading.Event().wait(_LOOK_S)
    if not socket.closed:
        resources.engine_manager = None  # it has nothing left to end, and would raise again
        with contextlib.suppress(Exception):
            bounded(resources, deadline_s)
