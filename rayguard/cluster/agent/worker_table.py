"""Which Ray workers run on this node: the children of its raylet, as the kernel shows them.

One look costs about 0.2 ms and 60 us a worker. Workers that Ray starts in containers of their own are not its
children and are not seen. What their deaths mean is ``worker_deaths``, what their stillness means
``stalled_workers``.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rayguard.private import read_regular
from rayguard.process import owned_files
from rayguard.process.identity import ProcessId, owner_of
from rayguard.process.resident import resident

if TYPE_CHECKING:
    from collections.abc import Iterator

_PROC = Path("/proc")
_NAMED = re.compile(r"(?:.*:)?([\w<>]+)(?:\.[\w<>]+)*(?:\(.*\))?", re.DOTALL)
_TITLE = "ray::"
_IDLE = "IDLE"
_RAYS_OWN = frozenset({"DashboardAgent", "RuntimeEnvAgent"})  # children of a raylet that are no workers
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_MAX_PAGE_BYTES = 1 << 20
_MAX_BYTES = 1 << 17
_JOB = b"RAY_JOB_ID="
_NO_JOB = "ffffffff"  # of a worker that was started before a job wanted it
_EVERY = 10  # looks; then it is seen again which threads of the raylet have children
# Of /proc/<pid>/stat, after the name of the program.
_STATE, _PARENT, _GROUP, _UTIME, _STIME, _STARTED = 0, 1, 2, 11, 12, 19
_STARTCODE, _STARTSTACK, _STARTBRK = 23, 25, 44
_SAVED = ("title", "target", "job_id", "leads", "marked")  # of a worker, beyond the agent's life

Layout = tuple[int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """One Ray worker at one moment. ``marked``: rayguard runs in it. ``layout``: where its memory begins.

    A forked child has the layout of its parent, and nobody else has: each program that is executed gets
    random addresses. (0, 0, 0) where the kernel does not tell.
    """

    process: ProcessId
    title: str = ""  # without "ray::": a class, a class and its method, a function, or IDLE
    state: str = ""
    leads: bool = False  # its process group, as Ray arranges it
    layout: Layout = (0, 0, 0)
    cpu_s: float = 0.0
    marked: bool = False
    target: str = ""  # class or function
    job_id: str = ""
    actor_id: str = ""  # where its page says so

    @property
    def idle(self) -> bool:
        """Say whether it waits for its first or next task."""
        return not self.target or self.target.startswith(_IDLE)

    def saved(self) -> tuple[object, ...]:
        """Return what is kept of it beyond the agent's life, as plain JSON."""
        return self.process.pid, self.process.started, *(getattr(self, name) for name in _SAVED), self.layout

    @classmethod
    def restored(cls, values: list[Any]) -> Worker:
        """Return the worker that ``saved`` kept."""
        pid, started, *saved, layout = values
        known = dict(zip(_SAVED, saved, strict=True))
        return cls(process=ProcessId(pid, started), layout=tuple(layout), **known)


@dataclass(slots=True)
class WorkerTable:
    """The workers of the raylet ``raylet``, whose node keeps its state in ``home``."""

    raylet: int
    home: Path
    proc: Path = _PROC
    _known: dict[ProcessId, tuple[str, str, str]] = field(default_factory=dict)  # class, job, actor
    _parents: dict[str, bytes] = field(default_factory=dict)  # threads of the raylet that have children
    _looks: int = 0

    def look(self) -> dict[ProcessId, Worker]:
        """Return the workers that live now."""
        marked = marks(self.home)
        workers = (self._worker(pid, marked) for pid in self._children())
        found = {worker.process: worker for worker in workers if worker is not None}
        self._known = {process: who for process, who in self._known.items() if process in found}
        return found

    def forks_of(self, leader: ProcessId, layout: Layout) -> list[ProcessId]:
        """Return the living processes in the group of a dead leader that were forked from it.

        They hold its connection to Ray open. Proved by their memory's layout, which only a fork inherits.
        """
        if not all(layout) or leader.alive():
            return []
        found = []
        for pid in self._pids():
            fields = self._stat(pid)
            if fields is None or pid == leader.pid or int(fields[_GROUP]) != leader.pid:
                continue
            if _layout(fields) == layout and int(fields[_STARTED]) >= leader.started:
                found.append(ProcessId(pid, int(fields[_STARTED])))
        return found

    def _worker(self, pid: int, marked: set[ProcessId]) -> Worker | None:
        fields = self._stat(pid)
        if fields is None or fields[_STATE] in "ZXx" or int(fields[_PARENT]) != self.raylet:
            return None
        title = self._title(pid)
        if not title.startswith(_TITLE) or (title := title.removeprefix(_TITLE)) in _RAYS_OWN:
            return None
        process = ProcessId(pid, int(fields[_STARTED]))
        ours = process in marked
        target, job_id, actor_id = self._who(process, title, marked=ours)
        return Worker(
            process=process,
            title=title,
            state=fields[_STATE],
            leads=int(fields[_GROUP]) == pid,
            layout=_layout(fields),
            cpu_s=(int(fields[_UTIME]) + int(fields[_STIME])) / _TICKS_PER_S,
            marked=ours,
            target=target,
            job_id=job_id,
            actor_id=actor_id,
        )

    def _who(self, process: ProcessId, title: str, *, marked: bool) -> tuple[str, str, str]:
        """Return class or function, job and actor: from its page where there is one, else from its title."""
        found = self._known.get(process) or ("", self._job(process.pid), "")
        if marked and not found[2]:
            name, job_id, actor_id = _page(self.home, process)
            found = (name, job_id or found[1], actor_id)
        self._known[process] = found
        return (found[0] or class_in(title), found[1], found[2])

    def _job(self, pid: int) -> str:
        line = next((one for one in self._text(pid, "environ").split(b"\0") if one.startswith(_JOB)), _JOB)
        found = line.removeprefix(_JOB).decode("ascii", "replace")
        return "" if found == _NO_JOB else found

    def private_bytes(self, process: ProcessId) -> int:
        """Return the memory that a process shares with nobody; 0 where it is gone."""
        found = resident(process.pid, proc=self.proc)
        return 0 if found is None else found.private

    def _title(self, pid: int) -> str:
        return self._text(pid, "cmdline").partition(b"\0")[0].decode("utf-8", "replace").strip()

    def _children(self) -> Iterator[int]:
        """Yield the raylet's children. Each thread lists those that it made, and only one or two make any."""
        if self._looks % _EVERY == 0:
            try:
                self._parents = dict.fromkeys(os.listdir(f"{self.proc}/{self.raylet}/task"), b"")  # noqa: PTH208
            except OSError:  # the raylet is gone, and this node with it
                self._parents = {}
        for thread in self._parents:
            self._parents[thread] = self._text(self.raylet, f"task/{thread}/children")
        self._looks += 1
        self._parents = {thread: pids for thread, pids in self._parents.items() if pids}
        return (int(pid) for pids in self._parents.values() for pid in pids.split())

    def _pids(self) -> Iterator[int]:
        return (int(name) for name in os.listdir(self.proc) if name.isdecimal())  # noqa: PTH208

    def _stat(self, pid: int) -> list[str] | None:
        text = self._text(pid, "stat")
        return text[text.rfind(b")") + 2 :].decode("ascii").split() if text else None

    def _text(self, pid: int, name: str) -> bytes:
        """Return a file of the kernel's on a process; empty where there is none. As cheap as can be."""
        try:
            file = os.open(f"{self.proc}/{pid}/{name}", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return b""
        try:
            return os.read(file, _MAX_BYTES)
        except OSError:  # it went just now
            return b""
        finally:
            os.close(file)


def marks(home: Path) -> set[ProcessId]:
    """Return the processes that rayguard runs in, dead or alive: those with a recording, page or numbers."""
    found: set[ProcessId | None] = {
        owned_files.writer_of(name, "flight", "ring") for name in _names(home / "flight")
    }
    for folder in ("status", "numbers"):
        found |= {owner_of(name.removesuffix(".json")) for name in _names(home / folder) if name[:1] != "."}
    return {process for process in found if process is not None}


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)  # noqa: PTH208 - strings, of which there are many
    except OSError:
        return []


def _page(home: Path, process: ProcessId) -> tuple[str, str, str]:
    """Return class, job and actor as the process's own page or numbers name them."""
    for folder in ("status", "numbers"):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            path = home / folder / f"{process.pid}-{process.started}.json"
            who = json.loads(read_regular(path, _MAX_PAGE_BYTES)).get("who", {})
            return tuple(str(who.get(name, "")) for name in ("actor_class", "job_id", "actor_id"))  # type: ignore[return-value]
    return ("", "", "")


def _layout(fields: list[str]) -> Layout:
    return (int(fields[_STARTCODE]), int(fields[_STARTSTACK]), int(fields[_STARTBRK]))


def class_in(title: str) -> str:
    """Return the class or function of a title, without the name that Ray puts before a named actor's class.

    "rollout-0:Rollout.generate" -> "Rollout": a metric's labels must not grow with the number of actors.
    """
    found = _NAMED.fullmatch(title)
    return found[1] if found else title.partition(".")[0].partition("(")[0]
