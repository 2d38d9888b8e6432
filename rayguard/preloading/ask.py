"""Asking for a process that forks workers, when this one has imported what it is to have (``later``)."""

from __future__ import annotations

import os
import socket
import sys

from rayguard.preloading import order
from rayguard.preloading.later import Wanted, files


def ask(module: str) -> bool:
    """Say that this worker has imported ``module``; return whether somebody who forks, or will, has heard.

    Blocks while who listens is busy, a few milliseconds. Raises ``OSError``.
    """
    door = order.told_door()
    if not door or module not in sys.modules:
        return False
    with socket.socket(socket.AF_UNIX) as asked:
        asked.settimeout(order.ANSWER_S)
        asked.connect(door)
        if not order.same_user(asked) or asked.recv(1) not in {order.NOT_YET, order.READY}:
            return False
        asked.sendall(Wanted(os.environ, files()).to_send())
        return True
