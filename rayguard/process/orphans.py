"""Engine processes whose owner is dead: found by the mark they carry, proved again when they are ended.

What makes one ours is ``leftovers``. They end themselves with their owner (``rayguard.engine.vllm.plugin``);
who is left is stopped, wedged in native code, or was started with our plugin switched off.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rayguard.process.deaths import dead, open_pidfd
from rayguard.process.identity import OWNER_ENV, ProcessId, owner_of
from rayguard.process.leftovers import (
    Fate,
    Leftover,
    Life,
    ProcessFacts,
    Sort,
    judge_process,
    titled_as_engine,
)
from rayguard.process.shm import listening_ports
from rayguard.process.world import life_of, namespaces_of, world

if TYPE_CHECKING:
    from collections.abc import Iterator

_PROC = Path("/proc")
_CLAIM = "/memfd:rayguard-owner:"  # how the kernel shows ``identity.claim``
_CLAIMED_END = " (deleted)"
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_MAX_ANCESTORS = 32
_TITLE_CHARS = 80


@dataclass(frozen=True, slots=True)
class Marked:
    """A process that carries a mark, and what was seen of it."""

    process: ProcessId
    mark: str
    facts: ProcessFacts

    def judged(self) -> tuple[Fate, str]:
        """Return what becomes of it, and why."""
        return judge_process(self.facts)


def find() -> list[Marked]:
    """Return all processes that carry a mark and are, or call themselves, engines, or whose owner is dead."""
    census = _Census()
    marked = (census.look(pid) for pid in census.pids())
    return [
        one
        for one in marked
        if one is not None
        and (one.facts.claimed or titled_as_engine(one.facts.title) or one.facts.owner is not Life.ALIVE)
    ]


def as_leftover(one: Marked) -> Leftover:
    """Return how it is shown. Its ports are looked up only where it is to be reaped."""
    fate, why = one.judged()
    return Leftover(
        sort=Sort.PROCESS,
        name=f"{one.facts.title} (pid {one.process.pid})",
        owner=one.mark,
        size_bytes=_resident_bytes(one.process.pid),
        fate=fate,
        why=why,
        ports=listening_ports(one.process) if fate is Fate.REAP else (),
    )


def end_orphan(one: Marked, deadline: float) -> tuple[Fate, str]:
    """End ``one`` by force and wait for it until ``deadline`` (monotonic seconds); say what became of it.

    Not ``tree.end``, which ends descendants too: here each process must be proved on its own.

    Raises:
        OSError: The kernel refused.
    """
    try:
        fd = open_pidfd(one.process)
        if fd is None:
            return (
                Fate.LEFT,
                "the kernel gives no descriptor for it, so its pid may come to mean another process",
            )
        try:
            return _ended(one, fd, deadline)
        finally:
            os.close(fd)
    except ProcessLookupError:
        return Fate.LEFT, "it ended by itself"


def _ended(one: Marked, fd: int, deadline: float) -> tuple[Fate, str]:
    # Through the descriptor the signal can only reach the process that is looked at here once more.
    again = _Census().look(one.process.pid)
    if again is None or (again.process, again.mark) != (one.process, one.mark):
        return Fate.LEFT, "it changed while it was looked at"
    fate, why = again.judged()
    if fate is not Fate.REAP:
        return fate, why
    signal.pidfd_send_signal(fd, signal.SIGKILL)
    _wait(fd, deadline)
    if not dead(one.process, fd):
        return Fate.FAILED, "it was killed, and the kernel has not ended it yet"
    return Fate.REAPED, why


def wait_until_dead(process: ProcessId, deadline: float) -> None:
    """Return when ``process`` is dead, at the latest at ``deadline`` (monotonic seconds)."""
    with contextlib.suppress(ProcessLookupError):
        fd = open_pidfd(process)
        if fd is not None:
            try:
                _wait(fd, deadline)
            finally:
                os.close(fd)


def _wait(fd: int, deadline: float) -> None:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    poll.poll(max(0.0, deadline - time.monotonic()) * 1_000)


class _Census:
    """One look at the processes of this machine; what was found of a process is asked of it once."""

    def __init__(self) -> None:
        self._seen: dict[int, Marked | None] = {}
        self._here = world()
        self._namespaces = self._here.partition(" ")[2]
        self._me = os.geteuid()

    @staticmethod
    def pids() -> Iterator[int]:
        for name in os.listdir(_PROC):  # noqa: PTH208 - names only, some hundred
            if name.isdecimal():
                yield int(name)

    def look(self, pid: int, depth: int = 0) -> Marked | None:
        """Return ``pid`` if it carries a mark, lives and may be looked at."""
        if pid not in self._seen:
            self._seen[pid] = None  # against a circle, which pids that are reused meanwhile could make
            with contextlib.suppress(OSError, ValueError):  # gone, or not ours to look at
                self._seen[pid] = self._look(pid, depth)
        return self._seen[pid]

    def _look(self, pid: int, depth: int) -> Marked | None:
        own = _PROC / str(pid)
        if own.stat().st_uid != self._me:
            return None
        process = ProcessId.of(pid)
        if process is None or not process.alive():
            return None
        claimed, inherited = _claim_of(own), _inherited_mark(own)
        mark = claimed or inherited
        owner = owner_of(mark)
        if owner is None:
            return None
        facts = ProcessFacts(
            ours=True,
            here=bool(self._here) and namespaces_of(pid) == self._namespaces,
            title=_title(own),
            claimed=bool(claimed),
            inherited=bool(inherited),
            under_stranger=self._under_stranger(own, depth),
            owner=life_of(owner, self._here),
            since_owner=process.started >= owner.started,
            itself=pid == os.getpid(),
        )
        # Asked last: had the pid been reused meanwhile, all of this would be about two processes.
        return Marked(process, mark, facts) if ProcessId.of(pid) == process else None

    def _under_stranger(self, own: Path, depth: int) -> bool:
        """Say whether its parent carries a mark and is not to be reaped itself."""
        if depth >= _MAX_ANCESTORS:
            return True
        parent = self.look(_parent(own), depth + 1)
        return parent is not None and parent.judged()[0] is not Fate.REAP


def _claim_of(own: Path) -> str:
    """Return the mark that a process claims, '' for none; raises ``ValueError`` for claims that differ."""
    claims: set[str] = set()
    for fd in (own / "fd").iterdir():
        with contextlib.suppress(OSError):  # closed while we looked
            shown = str(fd.readlink())
            if shown.startswith(_CLAIM) and shown.endswith(_CLAIMED_END):
                claims.add(shown.removeprefix(_CLAIM).removesuffix(_CLAIMED_END))
    if len(claims) > 1:
        raise ValueError(f"{own} claims to be of {sorted(claims)}")
    return next(iter(claims), "")


def _inherited_mark(own: Path) -> str:
    prefix = f"{OWNER_ENV}=".encode()
    for variable in (own / "environ").read_bytes().split(b"\0"):
        if variable.startswith(prefix):
            return variable.removeprefix(prefix).decode("ascii", "replace")
    return ""


def _title(own: Path) -> str:
    return (
        (own / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace").strip()[:_TITLE_CHARS]
    )


def _parent(own: Path) -> int:
    stat = (own / "stat").read_bytes()
    return int(stat[stat.rfind(b")") + 2 :].split()[1])


def _resident_bytes(pid: int) -> int:
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int((_PROC / str(pid) / "statm").read_bytes().split()[1]) * _PAGE_BYTES
    return 0
