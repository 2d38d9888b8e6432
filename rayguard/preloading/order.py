"""What a worker that is to start tells the process that forks it, and where that one listens.

The door is a socket without a file: it is gone with its process. Both ends look whose user the other one is.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

RAYLET, JOB = "RAY_RAYLET_PID", "RAY_JOB_ID"
READY, REFUSED, FORKED, GO = b"r", b"x", b"f", b"g"
ANSWER_S = 15.0  # for a fork, and each word around it; measured: 5 ms
_MAX_BYTES = 1 << 20
_PEER = struct.Struct("3i")  # pid, user, group


@dataclass(frozen=True, slots=True)
class WorkerOrder:
    """A worker: the one variable that it may have of its own, its arguments, what its start has set."""

    job: str
    arguments: list[str]
    leads: bool  # its process group, as Ray arranges it
    oom_score: str


def door_of(modules: Sequence[str]) -> str:
    """Return where the process listens that has ``modules`` and this process's variables but for the job."""
    where = os.readlink("/proc/self/ns/pid"), os.environ[RAYLET], os.getcwd()  # noqa: PTH109, PTH115 - pathlib is slow to import
    variables = {name: value for name, value in os.environ.items() if name != JOB}
    seen = [os.getuid(), *where, list(modules), sorted(variables.items())]
    return f"\0rayguard-preloaded-{hashlib.sha256(json.dumps(seen).encode()).hexdigest()[:32]}"


def same_user(peer: socket.socket) -> bool:
    """Say whether the other end is a process of this user."""
    _, user, _ = _PEER.unpack(peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    return bool(user == os.getuid())


def of_this_process(arguments: Sequence[str], environ: Mapping[str, str]) -> WorkerOrder:
    """Return the order for what this process would become; raises ``OSError``."""
    with open("/proc/self/oom_score_adj", encoding="ascii") as file:  # noqa: PTH123 - as above
        score = file.read()
    return WorkerOrder(environ.get(JOB, ""), list(arguments), os.getpgid(0) == os.getpid(), score)


def send(order: WorkerOrder, to: socket.socket) -> None:
    """Send it; raises ``OSError``."""
    to.sendall(json.dumps([order.job, order.arguments, order.leads, order.oom_score]).encode() + b"\n")


def receive(asked: socket.socket) -> WorkerOrder | None:
    """Return what is ordered; None where who asked is gone, or has given up."""
    said = b""
    while not said.endswith(b"\n") and len(said) < _MAX_BYTES:
        part = asked.recv(65_536)
        if not part:
            return None
        said += part
    job, arguments, leads, score = json.loads(said)
    return WorkerOrder(str(job), [str(one) for one in arguments], bool(leads), str(score))
