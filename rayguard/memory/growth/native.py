"""Which mappings of a process grow, and whether malloc only keeps what is free. For what Python does not see.

One look reads ``smaps``: 1 ms for a bare interpreter, 10-25 ms where torch and vLLM are loaded (the kernel
walks every page, and holds the process's memory map meanwhile).
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from rayguard.memory.growth.finding import Mapped, Native
from rayguard.memory.growth.growing import rates
from rayguard.memory.probes.heap import malloc, python_heap

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_PROC = Path("/proc")
_SHM = Path("/dev/shm")  # noqa: S108 - looked at, not written to
_LEAST = 1 << 20  # a step: less explains nothing
_MOST_SEGMENTS = 10_000
# address, rights, offset, device, inode, name
_MAPPING = re.compile(rb"^[0-9a-f]+-[0-9a-f]+ ([-rwxsp]{4}) \S+ \S+ \d+ *(.*)$")
_COUNTED = (b"Private_Clean", b"Private_Dirty", b"Private_Hugetlb", b"Swap")
_SHARED = (b"Shared_Clean", b"Shared_Dirty")
# The parts of a name that are made up anew for each file: hexadecimal with a digit in it, or numbers.
_SORTS = {
    "[heap]": "the C heap ([heap])",
    "/dev/zero (deleted)": "shared anonymous memory",
}
_MADE_UP = re.compile(r"(?=[0-9a-fA-F]*\d)[0-9a-fA-F]{4,}|\d+|(?<=psm_)\w+")


@dataclass(slots=True, kw_only=True)
class _Look:
    """Bytes at the end of ``step``. The last four are of this process, 0 where nobody tells."""

    step: int
    mappings: Mapping[str, int]
    private: int = 0
    python: int = 0
    malloc_used: int = 0
    malloc_free: int = 0


@dataclass(slots=True)
class NativeLooks:
    """One hunt in process ``pid``: ``look`` at the ends of steps, ``found`` after the last.

    ``segments``: look at the files in ``/dev/shm`` too, whoever maps them.
    """

    pid: int
    segments: bool = False
    proc: Path = _PROC
    shm: Path = _SHM
    note: str = ""
    _looks: tuple[_Look, ...] = field(default=())

    def look(self, step: int) -> None:
        """Read the kernel's tables. A process that is dead or not ours to read is noted."""
        try:
            mappings, private = _mappings(self.proc / str(self.pid) / "smaps")
        except OSError as error:
            self.note = f"the mappings of process {self.pid} cannot be read: {error.strerror or error}"
            mappings, private = {}, 0
        if self.segments:
            mappings.update(_segments(self.shm))
        own = self.pid == os.getpid()
        heap, allocator = (python_heap(), malloc()) if own else (None, None)
        found = _Look(
            step=step,
            mappings=mappings,
            private=private,
            python=heap.held if heap is not None else 0,
            malloc_used=allocator.used if allocator is not None else 0,
            malloc_free=allocator.free if allocator is not None else 0,
        )
        self._looks = (*self._looks, found)

    @property
    def looks(self) -> int:
        """How many looks there were."""
        return len(self._looks)

    def found(self) -> Native | None:
        """Return what grew from look to look; None after fewer than two."""
        if self.looks < 2:  # noqa: PLR2004
            return None
        last = self._looks[-1]
        grown = [Mapped(name=name, bytes_per_step=self._rate(name)) for name in last.mappings]
        mappings = sorted(
            (one for one in grown if one.bytes_per_step >= _LEAST), key=lambda one: -one.bytes_per_step
        )
        return Native(
            mappings=tuple(mappings),
            private=min(self._more("private"), self._more("private", self.looks // 2)),
            python=self._more("python"),
            malloc_used=self._more("malloc_used"),
            malloc_free=min(self._more("malloc_free"), self._most_steps("malloc_free")),
            trimmable=last.malloc_free,
        )

    def _rate(self, name: str) -> float:
        return rates([(one.step, one.mappings.get(name, 0)) for one in self._looks])

    def _more(self, share: str, since: int = 0) -> float:
        """Return how much more there is a step, below 0 never: what falls now and then may still grow."""
        first, last = self._looks[min(since, self.looks - 2)], self._looks[-1]
        more = int(getattr(last, share)) - int(getattr(first, share))
        return max(0.0, more / max(1, last.step - first.step))

    def _most_steps(self, share: str) -> float:
        """Return by how much half of the steps or more raise it: one jump is no growth."""
        pairs = pairwise(self._looks)
        return max(
            0.0,
            median(
                (int(getattr(late, share)) - int(getattr(early, share))) / max(1, late.step - early.step)
                for early, late in pairs
            ),
        )


def _mappings(smaps: Path) -> tuple[dict[str, int], int]:
    """Return resident bytes by sort of mapping, and the private ones of all together. Raises ``OSError``."""
    found: dict[str, int] = {}
    private, name, shared = 0, "", False
    for line in smaps.read_bytes().splitlines():
        mapping = _MAPPING.match(line)
        if mapping is not None:
            shared = mapping[1].endswith(b"s")
            name = sort_of(mapping[2].decode("utf-8", "replace"), shared=shared)
            continue
        key, _, value = line.partition(b":")
        if key in _COUNTED:
            used = int(value.split()[0]) * 1024
            private += used if not shared else 0
            found[name] = found.get(name, 0) + used
        elif shared and key in _SHARED:
            found[name] = found.get(name, 0) + int(value.split()[0]) * 1024
    return found, private


def sort_of(name: str, *, shared: bool) -> str:
    """Return what a mapping is called for people; those of one sort have one name."""
    if not name:
        return "anonymous memory"
    if name.startswith(("[", "/dev/zero")):
        return _SORTS.get(name, name)
    directory, _, file = name.rpartition("/")
    deleted = file.endswith(" (deleted)")
    if "plasma" in file:
        return "Ray's object store (views of its objects)"
    if not (shared or name.startswith((str(_SHM), "/memfd:")) or deleted):
        return name
    # A segment a step has a new name a step: what is made up in it is left out
    return f"{directory}/{_MADE_UP.sub('*', file.removesuffix(' (deleted)'))}" + (
        " (deleted)" if deleted else ""
    )


def _segments(shm: Path) -> dict[str, int]:
    """Return bytes of the files in shared memory by sort, whether or not anybody maps them."""
    found: dict[str, int] = {}
    try:
        for number, entry in enumerate(_files(shm)):
            if number >= _MOST_SEGMENTS:
                break
            name = f"files {shm}/{_MADE_UP.sub('*', entry.name)}"
            found[name] = found.get(name, 0) + entry.stat(follow_symlinks=False).st_blocks * 512
    except OSError:  # gone meanwhile, or not ours to see: what was seen is told
        pass
    return found


def _files(shm: Path) -> Iterator[os.DirEntry[str]]:
    with os.scandir(shm) as entries:
        yield from (entry for entry in entries if entry.is_file(follow_symlinks=False))
