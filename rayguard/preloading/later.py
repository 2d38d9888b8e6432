"""Who listens in the place of the process that forks workers, until there is one.

``python -m rayguard.preloading.later DOOR MODULES WORKER``, as ``server``. A small process: workers that
ask it start by themselves at once. When one of them says that it has imported the modules (``ask``), another
process imports them too, at a lower priority, and takes the door: workers after that are
forked. Not where memory is short, or where that worker has others than a fork would have: from another file,
or made with other values of environment variables.
"""

from __future__ import annotations

import contextlib
import functools
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

    from rayguard.engine.prefork.variables import ImportedWith

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
        match json.loads(said.removeprefix(order.IMPORTED)):
            case [dict(variables), dict(files)]:
                return cls(variables, files)
        raise ValueError("not what a worker says")

    def to_send(self) -> bytes:
        """Return it as a line."""
        return order.IMPORTED + json.dumps([dict(self.variables), dict(self.files)]).encode() + b"\n"


@dataclass(slots=True)
class Door:
    """Answers until somebody takes it. ``importing``: how to talk to who will; it is tried once."""

    door: socket.socket
    raylet: int  # a pidfd, as those of workers
    workers: dict[int, int] = field(default_factory=dict)  # by pid
    importing: socket.socket | None = None
    importer: int = 0
    heard: list[Wanted] = field(default_factory=list)  # what workers said, for who imports
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
                    if wanted is not None and (mine := self._begun(wanted)) is not None:
                        return wanted, mine
        if self.importer:
            os.kill(self.importer, signal.SIGKILL)
        return None

    def _ready(self) -> set[int]:
        talk = [] if self.importing is None else [self.importing.fileno()]
        watched = [self.door.fileno(), self.raylet, *talk, *self.workers.values()]
        return set(select.select(watched, [], [], _LOOK_S)[0])

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

    def _begun(self, wanted: Wanted) -> socket.socket | None:
        """Begin the process that imports, once; in it, return how to talk to this one."""
        first = not self.heard
        if first or self.importing is not None:  # else it was given up: nobody is to know
            self.heard.append(wanted)
        if not first:
            return None
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
                heard = [[one.variables, one.files] for one in self.heard]
                self.importing.sendall(json.dumps([[*self.workers], heard]).encode())
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
        _say(f"who listens for workers ends: {error!r}")
        os._exit(1)
    if found is None:
        os._exit(0)
    wanted, keeper = found
    _fork_for(door, names, wanted, keeper)


def _fork_for(door: socket.socket, names: Sequence[str], wanted: Wanted, keeper: socket.socket) -> None:
    """Import, take the door from ``keeper`` and fork what is asked for; end where that cannot be."""
    from rayguard.engine.prefork.variables import ImportedWith  # noqa: PLC0415 - not in who listens
    from rayguard.preloading import server  # noqa: PLC0415 - likewise

    try:
        read, before = set[str](), dict(os.environ)
        why = _short_of_memory() or server.prepare(names, read, at_leisure=True)
        imported = ImportedWith(os.getpid(), before, dict(os.environ), read - order.OF_A_RANK)
        differs = functools.partial(_differs, imported, files())
        if why := why or differs(wanted):
            _say(f"next lives of actors start by themselves: {why}")
            os._exit(0)
        workers, heard = _taken_from(keeper)
        if why := next(filter(None, map(differs, heard)), ""):
            _say(f"next lives of actors start by themselves: {why}")
    except BaseException as error:  # noqa: BLE001 - as above
        _say(f"what forks workers ends: {error!r}")
        os._exit(1)
    server.serve(door, read, workers, lambda said: differs(Wanted.read(said)), unfit=bool(why))


def _say(what: str) -> None:
    print(f"rayguard: {what}", file=sys.stderr, flush=True)  # noqa: T201 - into the log of the raylet


def _taken_from(keeper: socket.socket) -> tuple[list[int], list[Wanted]]:
    """Take the door; return which workers started by themselves and what they said, as far as it is known."""
    with keeper, contextlib.suppress(OSError, ValueError):  # it is dead: the door is ours
        keeper.sendall(order.READY)
        workers, heard = json.loads(b"".join(iter(functools.partial(keeper.recv, 1 << 16), b"")))
        return workers, [Wanted(*one) for one in heard]
    return [], []


def _differs(imported: ImportedWith, here: Mapping[str, str], wanted: Wanted) -> str:
    """Return what an actor has imported otherwise than this process, or an empty string."""
    others = [name for name in here.keys() & wanted.files.keys() if here[name] != wanted.files[name]]
    if others:
        return f"an actor has its {others[0]} from {wanted.files[others[0]]}, others from {here[others[0]]}"
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

    left = NodeProbe().left(default=_NEEDS)
    return "" if left >= _NEEDS else f"{left >> 20} MiB of memory are left"


if __name__ == "__main__":
    main()
