"""Starts a Ray worker: has it forked by the process that has its imports, or starts it as Ray would.

Ray runs this in the place of Python, as a runtime environment can ask for. It loads as little as it can.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time
from typing import TYPE_CHECKING

from rayguard.preloading import order

if TYPE_CHECKING:
    from collections.abc import Sequence

_AT_ONCE, _LATER = "server", "later"
IMPORTS_S = 30.0  # Ray gives up a worker that has not come in 60 s


def main(modules: Sequence[str], arguments: Sequence[str]) -> None:
    """Have the worker with these command-line ``arguments`` forked, or become it."""
    if not forked(modules, arguments):
        _become(arguments)


def main_later(modules: Sequence[str], arguments: Sequence[str]) -> None:
    """Do so without waiting: nothing is imported before a worker says that it has done so (``later``)."""
    forks = False
    with contextlib.suppress(OSError, ValueError, KeyError):  # as Ray would, then
        order.tell_door(order.door_of(modules, _LATER))
        forks = _asked(_LATER, modules, arguments, order.ANSWER_S)
    if not forks:
        _become(arguments)


def _become(arguments: Sequence[str]) -> None:
    os.execv(sys.executable, [sys.executable, *arguments])  # noqa: S606 - as Ray does


def forked(modules: Sequence[str], arguments: Sequence[str], *, wait_s: float = IMPORTS_S) -> bool:
    """Have a worker forked; False where that cannot be. Waits ``wait_s`` for the imports."""
    with contextlib.suppress(OSError, ValueError, KeyError):  # as Ray would, then
        return _asked(_AT_ONCE, modules, arguments, wait_s)
    return False


def _asked(program: str, modules: Sequence[str], arguments: Sequence[str], wait_s: float) -> bool:
    """Have a worker forked by ``program`` of this package, which is started where nobody listens."""
    door, until = order.door_of(modules, program), time.monotonic() + wait_s
    while time.monotonic() < until:
        with socket.socket(socket.AF_UNIX) as asked:
            if _reached(asked, door):
                return _ordered(asked, arguments, until)
            _start(program, door, modules, arguments)
    return False


def _reached(asked: socket.socket, door: str) -> bool:
    try:
        asked.connect(door)
    except ConnectionRefusedError:
        return False
    return True


def _ordered(asked: socket.socket, arguments: Sequence[str], until: float) -> bool:
    """Order a worker. It is one only when it is told to go: nobody starts a second one."""
    if not order.same_user(asked):
        return False
    asked.settimeout(max(0.1, until - time.monotonic()))
    if asked.recv(1) != order.READY:
        return False
    asked.settimeout(order.ANSWER_S)
    order.send(order.of_this_process(arguments, os.environ), asked)
    if asked.recv(1) != order.FORKED:
        return False
    asked.sendall(order.GO)
    return True


def _start(program: str, door: str, modules: Sequence[str], arguments: Sequence[str]) -> None:
    """Start the process that forks, unless another worker was first."""
    from rayguard.preloading.sibling import sibling  # noqa: PLC0415 - once on a node

    with socket.socket(socket.AF_UNIX) as listener:
        try:
            listener.bind(door)
        except OSError:  # in use
            return
        listener.listen(64)
        if sibling() == 0:
            os.setpgid(0, 0)  # not of a worker's process group, which Ray ends with the worker
            os.set_inheritable(listener.fileno(), True)  # noqa: FBT003 - Python's
            command = ["-m", f"rayguard.preloading.{program}", str(listener.fileno()), ",".join(modules)]
            os.execv(sys.executable, [sys.executable, *command, arguments[0]])  # noqa: S606 - no shell is needed
