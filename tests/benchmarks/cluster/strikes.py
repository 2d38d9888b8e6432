"""Faults from outside against a job that knows nothing of them; what each must be told as afterwards."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_LOOK_S = 0.2
_LIMIT_S = 60.0
_NOTICE_S = 30.0


@dataclass(frozen=True, slots=True)
class Strike:
    """One fault. ``pid`` is the process it hit, or 0; ``kinds`` are the right names for it.

    ``foreseen``: it is told while it comes, and once more when it is there.
    """

    name: str
    kinds: tuple[str, ...]
    pid: int = 0
    node: str = ""
    foreseen: bool = False


class Actors:
    """Ray's own table of actors, read by the driver that checks."""

    def __init__(self) -> None:
        self._pause = threading.Event()

    def named(self, name: str, *, other_than: int = 0) -> int:
        """Return the pid of the living actor of this name, once it has one.

        Raises:
            TimeoutError: It has none within a minute.
        """
        deadline = time.monotonic() + _LIMIT_S
        while time.monotonic() < deadline:
            for row in _rows():
                if row["Name"] == name and row["State"] == "ALIVE" and row["Pid"] != other_than:
                    return int(row["Pid"])
            self._pause.wait(_LOOK_S)
        raise TimeoutError(f"no living actor {name!r}")

    def of_class(self, name: str) -> list[dict[str, Any]]:
        """Return the rows of all actors of this class, living and dead."""
        return [row for row in _rows() if row["ActorClassName"].rpartition(".")[2] == name]


def _rows() -> list[dict[str, Any]]:
    from ray._private import state

    return list(state.actors().values())


def kill(actors: Actors, name: str) -> Strike:
    """Kill a worker as a person or a script would."""
    pid = actors.named(name)
    os.kill(pid, signal.SIGKILL)
    return Strike(f"{name} killed", ("actor_died",), pid)


def freeze(
    actors: Actors,
    name: str,
    seconds: float,
    *,
    meanwhile: Callable[[], None],
    release: Callable[[int], None],
) -> Strike:
    """Stop a whole actor for a while, then let it go on: as ``release`` does, and in any case."""
    pid = actors.named(name)
    os.kill(pid, signal.SIGSTOP)
    try:
        meanwhile()
        threading.Event().wait(seconds)
        release(pid)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
    return Strike(f"{name} frozen", ("actor_unavailable", "engine_hang", "actor_hang"), pid)


def drain(address: str, node_id: str) -> Strike:
    """Tell Ray that a node will be taken away, as a cloud's notice does."""
    from ray._raylet import GcsClient
    from ray.core.generated.autoscaler_pb2 import DrainNodeReason

    reason = DrainNodeReason.DRAIN_NODE_REASON_PREEMPTION
    until = int((time.time() + _NOTICE_S) * 1000)
    accepted, why = GcsClient(address=address).drain_node(node_id, reason, "spot notice", until)
    if not accepted:
        raise RuntimeError(f"Ray did not take the notice: {why}")
    return Strike("node drained", ("preempted",), 0, node_id)


def kill_pid(pid: int) -> None:
    """Kill a process of rayguard's own."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
