"""Who listens in the place of the process that forks workers, until there is one.

``python -m rayguard.preloading.later DOOR MODULES WORKER``, as ``server``. A small process: workers that
ask it start by themselves at once. When one of them says that it has imported the modules (``ask``), another
process imports them too, with CPU time that nobody else needs, and takes the door: workers after that are
forked. Not where memory is short, or where that worker has others than a fork would have: from another file,
or made with other values of environment variables.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rayguard.preloading import order
from rayguard.preloading.sibling import sibling

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_IDLE_S = 60.0
_LOOK_S = 5.0
_SAYS_S = 1.0  # who asks has it ready
_RAYS_OWN = "/ray/thirdparty_files/"  # copies: which one is taken depends on what was imported first
_NEEDS = 2 << 30  # bytes: four times what vLLM's imports take


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a worker has imported that others will need: its variables, and where its modules come from."""

    variables: Mapping[str, str]
    files: Mapping[str, str]

    @classmethod
    def read(cls, said: bytes) -> Wanted:
        """Read what ``to_send`` wrote; raises ``ValueError``."""
        match json.loads(said):
            case [dict(variables), dict(files)]:
                return cls(variables, files)
        raise ValueError("not what a worker says")

    def to_send(self) -> bytes:
        """Return it as a line."""
        return json.dumps([dict(self.variables), dict(self.files)]).encode() + b"\n"


@dataclass(slots=True)
class Door:
    """Answers until somebody takes it. ``importing``: how to talk to who will; none is tried twice."""

    door: socket.socket
    raylet: int  # a pidfd, as those of workers
    workers: dict[int, int] = field(default_factory=dict)  # by pid
    importing: socket.socket | None = None
    importer: int = 0
    tried: bool = False
    needed: float = field(default_factory=time.monotonic)

    def keep(self) -> tuple[Wanted, socket.socket] | None:
        """Return in the process that is to import what it is to; in this one None, when nobody needs it."""
        while time.monotonic() - self.needed < _IDLE_S:
            ready = self._ready()
            if self.raylet in ready:
                break
            self._forget(ready)
            if self.importing is not None and self.importing.fileno() in ready and self._handed_over():
                return None
            if self.door.fileno() in ready:
                self.needed = time.monotonic()
                with contextlib.suppress(OSError, ValueError):  # who asked is gone, or is nobody of ours
                    wanted = self._asked()
                    if wanted is not None and not self.tried and (mine := self._begun()) is not None:
                        return wanted, mine
        if self.importer:
            os.kill(self.importer, signal.SIGKILL)
        return None

    def _ready(self) -> set[int]:
        talk = [] if self.importing is None else [self.importing.fileno()]
        return set(
            select.select([self.door.fileno(), self.raylet, *talk, *self.workers.values()], [], [], _LOOK_S)[
                0
            ]
        )

    def _forget(self, ready: set[int]) -> None:
        for pid, pidfd in [*self.workers.items()]:
            if pidfd in ready:
                os.close(self.workers.pop(pid))
        if self.workers:
            self.needed = time.monotonic()

    def _asked(self) -> Wanted | None:
        """Let who asks start by itself; return what it has imported, if that is what it says."""
        asked, _ = self.door.accept()
        with asked:
            if not order.same_user(asked):
                return None
            asked.settimeout(_SAYS_S)
            asked.sendall(order.NOT_YET)
            pid = order.pid_of(asked)
            pidfd = os.pidfd_open(pid)
            if pid in self.workers:
                os.close(self.workers[pid])
            self.workers[pid] = pidfd
            said = order.line(asked)
        return Wanted.read(said) if said else None

    def _begun(self) -> socket.socket | None:
        """Begin the process that imports; in it, return how to talk to this one."""
        self.tried = True
        mine, its = socket.socketpair()
        pid = sibling()
        if pid == 0:
            mine.close()
            for pidfd in (self.raylet, *self.workers.values()):
                os.close(pidfd)
            return its
        its.close()
        self.importing, self.importer = mine, pid
        return None

    def _handed_over(self) -> bool:
        """Say whether the door is the other process's now; it has ended otherwise."""
        assert self.importing is not None, "it was asked for"
        self.importer = 0
        with self.importing, contextlib.suppress(OSError):
            if self.importing.recv(1) == order.READY:
                self.importing.sendall(json.dumps([*self.workers]).encode() + b"\n")
                return True
        self.importing = None
        return False


def main() -> None:
    """Listen; in the process that imports, then fork what is asked for."""
    door, names, worker = socket.socket(fileno=int(sys.argv[1])), sys.argv[2].split(","), sys.argv[3]
    sys.path[0] = os.path.dirname(worker)  # noqa: PTH120 - as it would be in a worker
    try:
        found = Door(door, os.pidfd_open(int(os.environ[order.RAYLET]))).keep()
    except BaseException as error:  # noqa: BLE001 - a worker must never go on as a second one
        print(f"rayguard: who listens for workers ends: {error!r}", file=sys.stderr, flush=True)  # noqa: T201
        os._exit(1)
    if found is None:
        os._exit(0)
    wanted, keeper = found
    _fork_for(door, names, wanted, keeper)


def _fork_for(door: socket.socket, names: Sequence[str], wanted: Wanted, keeper: socket.socket) -> None:
    """Import, take the door from ``keeper`` and fork what is asked for; end where that cannot be."""
    from rayguard.preloading import server  # noqa: PLC0415 - here alone

    try:
        read: set[str] = set()
        why = _short_of_memory() or _imported(names, wanted, read)
        if why:
            said = f"rayguard: next lives of actors start by themselves: {why}"
            print(said, file=sys.stderr, flush=True)  # noqa: T201
            os._exit(0)
        workers = _taken_from(keeper)
    except BaseException as error:  # noqa: BLE001 - as above
        print(f"rayguard: what forks workers ends: {error!r}", file=sys.stderr, flush=True)  # noqa: T201
        os._exit(1)
    server.serve(door, read, workers)


def _taken_from(keeper: socket.socket) -> list[int]:
    """Take the door; return the workers that started by themselves, as far as anybody still knows."""
    with keeper, contextlib.suppress(OSError):  # it is dead: the door is ours
        keeper.sendall(order.READY)
        known: list[int] = json.loads(order.line(keeper) or b"[]")
        return known
    return []


def _imported(names: Sequence[str], wanted: Wanted, read: set[str]) -> str:
    """Import what workers need; return why they cannot be forked, or an empty string."""
    from rayguard.engine.prefork.variables import ImportedWith  # noqa: PLC0415 - not in who listens
    from rayguard.preloading import server  # noqa: PLC0415 - likewise

    before = dict(os.environ)
    if why := server.prepare(names, read, at_leisure=True):
        return why
    here = files()
    others = [name for name in here.keys() & wanted.files.keys() if here[name] != wanted.files[name]]
    if others:
        return f"an actor has its {others[0]} from {wanted.files[others[0]]}, others from {here[others[0]]}"
    imported = ImportedWith(os.getpid(), before, dict(os.environ), read - order.OF_A_RANK)
    if changed := imported.differs(wanted.variables):
        return f"{', '.join(changed)} changed in an actor before its imports"
    return ""


def files() -> dict[str, str]:
    """Return where the modules of this process come from, by name; of a package, the package alone."""
    found = {name: getattr(module, "__file__", None) for name, module in [*sys.modules.items()]}
    tops = {name: str(file) for name, file in found.items() if file and "." not in name}
    return {name: file for name, file in tops.items() if name[:2] != "__" and _RAYS_OWN not in file}


def _short_of_memory() -> str:
    from rayguard.memory.probes.node import NodeProbe  # noqa: PLC0415 - not in who listens

    probe = NodeProbe()
    readings = (probe.read(), probe.own_cgroup())
    left = min((one.total - one.used for one in readings if one is not None), default=_NEEDS)
    return "" if left >= _NEEDS else f"{left >> 20} MiB of memory are left"


if __name__ == "__main__":
    main()
