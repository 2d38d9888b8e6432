"""Engine processes whose owner is dead: found by the mark they carry, proved again when they are ended.

What makes one ours is ``verdict``. They end themselves with their owner (``rayguard.engine.vllm.plugin``);
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

import psutil

from rayguard.private import closed_after
from rayguard.process.cleanup.shm import listening_ports
from rayguard.process.cleanup.verdict import (
    Fate,
    Leftover,
    ProcessFacts,
    ProcessLife,
    Sort,
    judge_process,
    titled_as_engine,
)
from rayguard.process.deaths import dead, held_pidfd
from rayguard.process.identity import ProcessId, claimed_marks, inherited_mark, owner_of
from rayguard.process.pid_namespace import life_of, namespaces_of, world
from rayguard.process.resident import resident

_PROC = Path("/proc")
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
    marked = (census.look(pid) for pid in psutil.pids())
    return [
        one
        for one in marked
        if one is not None
        and (
            one.facts.claimed or titled_as_engine(one.facts.title) or one.facts.owner is not ProcessLife.ALIVE
        )
    ]


def as_leftover(one: Marked) -> Leftover:
    """Return how it is shown. Its ports are looked up only where it is to be reaped."""
    fate, why = one.judged()
    memory = resident(one.process.pid)
    return Leftover(
        sort=Sort.PROCESS,
        name=f"{one.facts.title} (pid {one.process.pid})",
        owner=one.mark,
        size_bytes=0 if memory is None else memory.private + memory.shared,
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
        with held_pidfd(one.process) as fd:
            if fd is None:
                return Fate.LEFT, "the kernel gives no descriptor: its pid may come to mean another process"
            return _ended(one, fd, deadline)
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
    """Return when ``process`` is dead to its last thread, at the latest at ``deadline`` (monotonic)."""
    with contextlib.suppress(AttributeError, OSError), closed_after(os.pidfd_open(process.pid)) as fd:
        if process.state():  # this very one, also as a zombie: what its other threads map is not free yet
            _wait(fd, deadline)


def _wait(fd: int, deadline: float) -> None:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    poll.poll(max(0.0, deadline - time.monotonic()) * 1_000)


class _Census:
    """One look at the processes of this machine; what was found of a process is asked of it once."""

    def __init__(self) -> None:
        self._seen: dict[int, Marked | None] = {}
        self._world = world()
        self._namespaces = self._world.partition(" ")[2]
        self._me = os.geteuid()

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
        claimed, inherited = _claim_of(pid), inherited_mark(pid)
        mark = claimed or inherited
        owner = owner_of(mark)
        if owner is None:
            return None
        facts = ProcessFacts(
            ours=True,
            in_our_namespace=bool(self._world) and namespaces_of(pid) == self._namespaces,
            title=_title(own),
            claimed=bool(claimed),
            inherited=bool(inherited),
            under_stranger=self._under_stranger(own, depth),
            owner=life_of(owner, self._world),
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


def _claim_of(pid: int) -> str:
    """Return the mark that a process claims, '' for none; raises ``ValueError`` for claims that differ."""
    claims = claimed_marks(pid)
    if len(claims) > 1:
        raise ValueError(f"process {pid} claims to be of {sorted(claims)}")
    return next(iter(claims), "")


def _title(own: Path) -> str:
    words = (own / "cmdline").read_bytes().replace(b"\0", b" ")
    return words.decode("utf-8", "replace").strip()[:_TITLE_CHARS]


def _parent(own: Path) -> int:
    stat = (own / "stat").read_bytes()
    return int(stat[stat.rfind(b")") + 2 :].split()[1])
