"""What was seen while something grew, and which of it explains the growth. Pure.

The looks themselves are ``lines``, ``heap_census`` and ``native``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import PurePath

from rayguard.memory.growth.growing import Growing, size
from rayguard.memory.reading import Quantity

ENOUGH = 0.25  # of the growth: what has less of it does not explain it
_MOST = 3  # of each sort are told
_PRIVATE = (Quantity.PRIVATE, Quantity.HEAP, Quantity.NATIVE)
_SHARED = (Quantity.MAPPED, Quantity.SHM)


@dataclass(frozen=True, slots=True, kw_only=True)
class GrowingLine:
    """A line whose allocations stay. ``through``: the library's line that it called, if it is that."""

    file: str
    line: int
    function: str = ""
    bytes_per_step: float
    blocks_per_step: float = 0.0
    through: str = ""
    called_at: str = ""

    @property
    def where(self) -> str:
        """The line for people: "trainer.py:48 in update"."""
        name = f"{PurePath(self.file).name}:{self.line}"
        return f"{name} in {self.function}" if self.function else name

    def __str__(self) -> str:
        """Say it."""
        ways = [f"through {self.through}"] * bool(self.through)
        ways += [f"called at {self.called_at}"] * bool(self.called_at)
        through = f" ({', '.join(ways)})" if ways else ""
        allocations = f" in {_number(self.blocks_per_step)} allocations" if self.blocks_per_step else ""
        return f"{self.where}{through}: {size(self.bytes_per_step)} a step{allocations}"


@dataclass(frozen=True, slots=True, kw_only=True)
class GrowingContainer:
    """A container that gets longer, named by the way to it. ``item_bytes``: of the newest, all they hold."""

    kind: str
    path: str
    items_per_step: float
    item_bytes: float
    item: str = ""  # what the newest is
    hint: str = ""
    bounded: bool = False  # it has a most: what looks like a leak may be a cache that fills

    @property
    def bytes_per_step(self) -> float:
        """How much of the growth it is."""
        return self.items_per_step * self.item_bytes

    def __str__(self) -> str:
        """Say it."""
        item = f"{self.item}, " if self.item else ""
        number = _number(self.items_per_step)
        items = "item" if number == "1" else "items"
        hint = f"; {self.hint}" if self.hint else ""
        each = f"{item}{size(self.item_bytes)} each"
        return f"`{self.kind}` {self.path} grows by {number} {items} a step ({each}){hint}"


@dataclass(frozen=True, slots=True, kw_only=True)
class GrowingType:
    """A type of which there are more after every step. ``bytes_per_step`` 0: not known."""

    name: str
    number_per_step: float
    bytes_per_step: float = 0.0
    path: str = ""  # the way to one of the newest

    def __str__(self) -> str:
        """Say it."""
        bytes_ = f" ({size(self.bytes_per_step)})" if self.bytes_per_step else ""
        path = f", one of them held by {self.path}" if self.path else ""
        return f"{_number(self.number_per_step)} more `{self.name}` a step{bytes_}{path}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mapped:
    """A sort of mapping, or a file in memory, that gets bigger."""

    name: str
    bytes_per_step: float

    def __str__(self) -> str:
        """Say it."""
        return f"{self.name}: {size(self.bytes_per_step)} a step"


@dataclass(frozen=True, slots=True, kw_only=True)
class Native:
    """What the kernel and malloc say, in bytes a step. The last four are known of this process only."""

    mappings: tuple[Mapped, ...] = ()
    private: float = 0.0  # to the end: what grew at first only, counts less
    python: float = 0.0  # of Python's allocator, for small objects
    malloc_used: float = 0.0
    malloc_free: float = 0.0
    trimmable: int = 0  # bytes that malloc holds free now

    @property
    def in_use(self) -> float:
        """How much more a step both allocators have given out; infinite where malloc tells nothing."""
        known = self.malloc_used or self.malloc_free
        return self.malloc_used + self.python if known else math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class GrowthEvidence:
    """All that was seen over some steps. ``notes``: what could not be looked at, and what the look cost."""

    lines: tuple[GrowingLine, ...] = ()
    held: tuple[GrowingContainer, ...] = ()
    kinds: tuple[GrowingType, ...] = ()
    native: Native | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Growth with its cause. ``where``: the line, the container or the mapping: the most exact there is."""

    sentence: str
    where: str
    bytes_per_step: float
    evidence: tuple[str, ...] = ()


def explain(growing: Growing, seen: GrowthEvidence, own_pid: int) -> Finding | None:
    """Return what makes ``growing`` grow, None where nothing that was seen has a fair share of it."""
    rate = growing.bytes_per_step or (seen.native.private if seen.native else 0.0)
    least = max(1.0, ENOUGH * rate)
    # What was allocated before the tracing is freed unseen: a full cache that is renewed looks as if it grew
    renewed = seen.native is not None and seen.native.in_use < least
    big = GrowthEvidence(
        lines=tuple(one for one in seen.lines if one.bytes_per_step >= least and not renewed),
        held=tuple(one for one in seen.held if one.bytes_per_step >= least),
        kinds=tuple(one for one in seen.kinds if one.bytes_per_step >= least),
    )
    ended = seen.native is not None and seen.native.private < least
    if ended and growing.quantity in _PRIVATE and not big.held:
        return None  # a cache that is full, a load that is done; what is held was seen to grow to the end
    where, cause = _python(big, seen)
    if not cause:
        where, cause = _native(growing, seen, least)
    if not cause:
        return None
    bounded = next((one.path for one in seen.held if one.bounded), "")
    rates = [one.bytes_per_step for part in (big.lines, big.held, big.kinds) for one in part]
    return Finding(
        sentence=f"{growing.sentence(own_pid)}: {cause}"
        + (f", and it may end by itself: {bounded} has a most" if bounded else ""),
        where=where,
        bytes_per_step=growing.bytes_per_step or max(rates, default=rate),
        evidence=_evidence(seen),
    )


def _python(big: GrowthEvidence, seen: GrowthEvidence) -> tuple[str, str]:
    """Return where Python's own objects make it grow, and a clause that says so."""
    graphs = [one for one in seen.held if one.hint]
    if big.lines:
        line = big.lines[0]
        return line.where, f"{big.held[0]}, allocated at {line}" if big.held else str(line)
    if big.held or graphs:  # what a graph holds is C++'s, and has no size for Python
        one = (*big.held, *graphs)[0]
        return one.path, str(one)
    if big.kinds:
        return big.kinds[0].path or big.kinds[0].name, str(big.kinds[0])
    return "", ""


def _native(growing: Growing, seen: GrowthEvidence, least: float) -> tuple[str, str]:
    """Return where native growth lies, and a clause that says so."""
    native = seen.native
    if native is None:
        return "", ""
    mappings = [one for one in native.mappings if one.bytes_per_step >= least]
    where = mappings[0].name if mappings else ""
    many = next((f" (and {kind})" for kind in seen.kinds), "")
    traced = sum(line.bytes_per_step for line in seen.lines)
    if growing.quantity in _SHARED:
        return where, str(mappings[0]) + many if mappings else ""
    if native.malloc_free >= max(least, native.malloc_used):
        return "malloc", (
            f"malloc keeps {size(native.malloc_free)} more a step that are free, {size(native.trimmable)} by "
            "now: fragmentation and no leak; malloc_trim can give it back"
        )
    if native.malloc_used - traced >= least:
        place = f" ({where})" if where else ""
        return where or "malloc", (
            f"{size(native.malloc_used - traced)} a step that C code took by malloc and did not free{place}; "
            f"no Python object accounts for it{many}"
        )
    if native.python >= least:
        return "Python's heap", f"{size(native.python)} a step of small Python objects{many}"
    return where, str(mappings[0]) + many if mappings else ""


def _evidence(seen: GrowthEvidence) -> tuple[str, ...]:
    told: list[str] = []
    native = seen.native
    for sort in (seen.lines, seen.held, seen.kinds, native.mappings if native is not None else ()):
        told += [str(one) for one in sort[:_MOST]]
    if native is not None and (native.malloc_used or native.malloc_free):
        told.append(
            f"malloc: {size(native.malloc_used)} more a step in use, {size(native.malloc_free)} more free; "
            f"Python's small objects {size(native.python)}"
        )
    return (*told, *seen.notes)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 or value == round(value) else f"{value:.1f}"  # noqa: PLR2004 - digits
