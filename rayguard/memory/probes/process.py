"""The memory of a process, of this one and of an engine's whole tree, as the kernel tells it.

Cheap by kept descriptors: ``statm`` of one process is 2 us a read (open and read: 12 us), and a descriptor of
``/proc`` never comes to mean a later process with the same pid. Does not know nodes, devices or Ray.

``private`` is resident - shared: USS to a few percent for a process that did not fork, but for the files that
it alone has mapped (0.1 GB of libraries where torch is loaded); too high for forked children that still share
untouched pages with their parent. ``detail`` counts both right, and costs 0.3-3 ms.
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rayguard.process.identity import ProcessId
from rayguard.process.tree import descendants

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_PROC = Path("/proc")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_RESIDENT, _SHARED = 1, 2  # fields of statm
_ENOUGH = 256  # bytes: seven numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class Resident:
    """Bytes in RAM. ``shared`` are pages of files and of shared memory, the object store's above all."""

    private: int
    shared: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Detail:
    """Bytes in RAM, each page counted right, from ``smaps_rollup``."""

    rss: int
    pss: int  # its fair share: the sum over processes is what they take together
    uss: int  # what its death would give back
    anonymous: int
    shmem: int  # proportional; 0 where the kernel does not tell (before 5.9)
    file: int  # proportional
    swap: int


class ProcessMemory:
    """Reads one process again and again; without an argument the calling process, also after a fork."""

    def __init__(self, process: ProcessId | None = None, *, proc: Path = _PROC) -> None:
        self._of = process
        self._proc = proc
        self._fd = -1
        self._opened_by = 0

    def read(self) -> Resident | None:
        """Return what it holds now; None once it is dead, or where it cannot be read. 2 us."""
        fd = self._fd
        if fd < 0 or (self._of is None and self._opened_by != os.getpid()):
            fd = self._open()
        try:
            return _resident(os.pread(fd, _ENOUGH, 0)) if fd >= 0 else None
        except OSError:  # it is dead
            return None

    def close(self) -> None:
        """Give the descriptor back; a later read opens another one."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            with contextlib.suppress(OSError):
                os.close(fd)

    def _open(self) -> int:
        # After a fork the inherited descriptor still means the parent; it is ours to close all the same.
        self.close()
        self._opened_by = os.getpid()
        pid = self._opened_by if self._of is None else self._of.pid
        try:
            fd = os.open(self._proc / str(pid) / "statm", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return -1
        # Asked after the open: from here on the descriptor means whoever it was opened for.
        if self._of is not None and self._proc == _PROC and ProcessId.of(self._of.pid) != self._of:
            os.close(fd)
            return -1
        self._fd = fd
        return fd


def resident(pid: int, *, proc: Path = _PROC) -> Resident | None:
    """Return what ``pid`` holds now, None where it is dead or cannot be read. Once: 12 us."""
    try:
        return _resident((proc / str(pid) / "statm").read_bytes())
    except OSError:
        return None


def detail(pid: int, *, proc: Path = _PROC) -> Detail | None:
    """Return PSS, USS and what they are made of; None for the dead and for other users' processes.

    0.3 ms for a bare interpreter, 3 ms where torch and vLLM are loaded: the kernel walks every page, and
    holds the process's memory map meanwhile.
    """
    try:
        text = (proc / str(pid) / "smaps_rollup").read_text()
    except OSError:
        return None
    found: dict[str, int] = {}
    for line in text.splitlines()[1:]:
        name, _, value = line.partition(":")
        number = value.strip().removesuffix(" kB")
        if number.isdecimal():
            found[name] = int(number) * 1024
    if "Pss" not in found:  # a zombie, a kernel thread
        return None
    return Detail(
        rss=found.get("Rss", 0),
        pss=found["Pss"],
        uss=sum(value for name, value in found.items() if name.startswith("Private_")),
        anonymous=found.get("Anonymous", 0),
        shmem=found.get("Pss_Shmem", 0),
        file=found.get("Pss_File", 0),
        swap=found.get("Swap", 0),
    )


class TreeMemory:
    """Reads roots with all that descends from them: an engine with its core and its workers.

    Finding descendants is costly (4-60 ms: every process of the machine is asked), so it is done again only
    after ``again_s`` seconds or when one has died; reading them is 2 us each.
    """

    def __init__(
        self,
        roots: Callable[[], Iterable[ProcessId]],
        *,
        again_s: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
        find: Callable[[ProcessId], Iterable[ProcessId]] = descendants,
    ) -> None:
        self._roots = roots
        self._again_s = again_s
        self._clock = clock
        self._find = find
        self._found_at = float("-inf")
        self._from: tuple[ProcessId, ...] = ()
        self._members: dict[ProcessId, ProcessMemory] = {}

    def read(self) -> dict[ProcessId, Resident]:
        """Return what each living member holds; empty when there is none."""
        if self._stale():
            self._look()
        readings = {member: memory.read() for member, memory in self._members.items()}
        if None in readings.values():
            self._found_at = float("-inf")  # one has died: there may be others in its place
        return {member: found for member, found in readings.items() if found is not None}

    @property
    def roots(self) -> tuple[ProcessId, ...]:
        """Whose members they are, as of the last look."""
        return self._from

    @property
    def members(self) -> tuple[ProcessId, ...]:
        """Those found at the last look, alive or not."""
        return tuple(self._members)

    def close(self) -> None:
        """Give all descriptors back."""
        for memory in self._members.values():
            memory.close()
        self._members = {}

    def _stale(self) -> bool:
        return tuple(self._roots()) != self._from or self._clock() - self._found_at >= self._again_s

    def _look(self) -> None:
        self._from, self._found_at = tuple(self._roots()), self._clock()
        wanted = {member for root in self._from for member in (root, *self._find(root))}
        for gone in self._members.keys() - wanted:
            self._members.pop(gone).close()
        for new in wanted - self._members.keys():
            self._members[new] = ProcessMemory(new)


def _resident(text: bytes) -> Resident | None:
    fields = text.split()
    if len(fields) <= _SHARED:
        return None
    pages, shared = int(fields[_RESIDENT]), int(fields[_SHARED])
    if pages == 0:  # a zombie, or a thread of the kernel: no memory to speak of
        return None
    return Resident(private=max(0, pages - shared) * _PAGE_BYTES, shared=shared * _PAGE_BYTES)
