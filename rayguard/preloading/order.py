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
    from collections.abc import Set as AbstractSet

RAYLET, JOB = "RAY_RAYLET_PID", "RAY_JOB_ID"
DOOR = "RAYGUARD_PRELOADING"  # tells a worker where to say that it has imported the modules (``later``)
# What workers of one kind may differ in: frameworks give each rank its own. Of no native library's.
OF_A_RANK = frozenset(
    {
        *("RANK", "LOCAL_RANK", "RAY_LOCAL_RANK", "NODE_RANK", "GROUP_RANK"),
        *("WORLD_SIZE", "LOCAL_WORLD_SIZE", "RAY_LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
        *("WG_PREFIX", "WG_BACKEND"),  # verl's and EasyR1's groups
    }
)
_OWN = OF_A_RANK | {JOB, DOOR}
READY, REFUSED, FORKED, GO = b"r", b"x", b"f", b"g"
NOT_YET = b"n"
IMPORTED = b"i"  # begins what a worker says of its imports, no order
ANSWER_S = 15.0  # for a fork, and each word around it; measured: 5 ms
_MAX_BYTES = 1 << 20
_NO_FILE = "\0"  # begins the name of a socket without a file; no environment variable can hold it
_PEER = struct.Struct("3i")  # pid, user, group


@dataclass(frozen=True, slots=True)
class WorkerOrder:
    """A worker: the variables that it may have of its own, its arguments, what its start has set."""

    variables: dict[str, str]
    arguments: list[str]
    leads: bool  # its process group, as Ray arranges it
    oom_score: str

    def differs_in(self, names: AbstractSet[str]) -> bool:
        """Say whether one of these variables is another one for it than for this process."""
        return any(self.variables.get(name) != os.environ.get(name) for name in names & OF_A_RANK)

    def set_variables(self) -> None:
        """Give this process what is the worker's own."""
        for name in _OWN - self.variables.keys():
            os.environ.pop(name, None)
        os.environ.update(self.variables)


def door_of(modules: Sequence[str], program: str) -> str:
    """Return where ``program`` with ``modules`` listens that has these variables, but for a worker's own."""
    where = os.readlink("/proc/self/ns/pid"), os.environ[RAYLET], os.getcwd()  # noqa: PTH109, PTH115 - pathlib is slow to import
    variables = {name: value for name, value in os.environ.items() if name not in _OWN}
    seen = [program, os.getuid(), *where, list(modules), sorted(variables.items())]
    return f"{_NO_FILE}rayguard-preloaded-{hashlib.sha256(json.dumps(seen).encode()).hexdigest()[:32]}"


def same_user(peer: socket.socket) -> bool:
    """Say whether the other end is a process of this user."""
    return _credentials(peer)[1] == os.getuid()


def pid_of(peer: socket.socket) -> int:
    """Return the process that connected."""
    return _credentials(peer)[0]


def _credentials(peer: socket.socket) -> tuple[int, int, int]:
    pid, user, group = _PEER.unpack(peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    return pid, user, group


def tell_door(door: str) -> None:
    """Let what this process becomes know of ``door``."""
    os.environ[DOOR] = door.removeprefix(_NO_FILE)


def told_door() -> str:
    """Return the door that this process was told of; an empty string for none."""
    told = os.environ.get(DOOR)
    return f"{_NO_FILE}{told}" if told else ""


def of_this_process(arguments: Sequence[str], environ: Mapping[str, str]) -> WorkerOrder:
    """Return the order for what this process would become; raises ``OSError``."""
    with open("/proc/self/oom_score_adj", encoding="ascii") as file:  # noqa: PTH123 - as above
        score = file.read()
    own = {name: environ[name] for name in _OWN & environ.keys()}
    return WorkerOrder(own, list(arguments), os.getpgid(0) == os.getpid(), score)


def send(order: WorkerOrder, to: socket.socket) -> None:
    """Send it; raises ``OSError``."""
    to.sendall(json.dumps([order.variables, order.arguments, order.leads, order.oom_score]).encode() + b"\n")


def line(asked: socket.socket) -> bytes:
    """Return what the other end says, up to the end of a line; nothing where it is gone, or has given up."""
    said = b""
    while not said.endswith(b"\n") and len(said) < _MAX_BYTES:
        part = asked.recv(65_536)
        if not part:
            return b""
        said += part
    return said


def read(said: bytes) -> WorkerOrder:
    """Return what is ordered; raises ``ValueError``."""
    own, arguments, leads, score = json.loads(said)
    variables = {str(name): str(value) for name, value in own.items() if name in _OWN}
    return WorkerOrder(variables, [str(one) for one in arguments], bool(leads), str(score))
