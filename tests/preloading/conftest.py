"""What the tests of workers that are forked, at once or later, have in common."""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path

import pytest

from rayguard.preloading import order


@pytest.fixture
def door(monkeypatch):
    """A door at which a worker of this process's would ask."""
    monkeypatch.setenv(order.RAYLET, str(os.getppid()))
    monkeypatch.delenv(order.DOOR, raising=False)
    name = order.door_of(["colorsys"], "server")
    monkeypatch.setattr(order, "door_of", lambda *_: name)  # pytest changes a variable all the time
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(name)
        listener.listen(8)
        yield listener


def running_in(folder):
    """Return the processes whose working directory that is, and what they were started as."""
    found = {}
    for one in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            if (one / "cwd").readlink() == folder:
                found[int(one.name)] = (one / "cmdline").read_bytes().replace(b"\0", b" ").decode()
    return found
