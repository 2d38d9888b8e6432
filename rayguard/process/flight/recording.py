"""What a flight recorder left: the last minutes of a process, dead or alive, as values and as a sentence.

Values only. They are read from the file by ``reader``; how memory grew is ``growth``, who
ended the process is ``rayguard.process.death_cause.killer``.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rayguard.process.flight.growth import RecordedGrowth, growth

if TYPE_CHECKING:
    from rayguard.process.identity import ProcessId

_MB = 1e6


@dataclass(frozen=True, slots=True)
class MemoryPoint:
    """Bytes at one moment (wall-clock seconds). ``step`` is -1 before the first; ``method`` ran then."""

    at: float
    private: int
    shared: int = 0
    device: int = 0
    node_ratio: float = 0.0  # of the machine's memory, or of the limit that comes first; 0 where unknown
    step: int = -1
    method: str = ""


@dataclass(frozen=True, slots=True)
class RoundPoint:
    """Steps (or calls of ``method``) ``first`` to ``last``, which ended at ``at`` with ``private`` bytes."""

    at: float
    first: int
    last: int
    private: int
    method: str = ""


@dataclass(frozen=True, slots=True)
class MethodState:
    """One guarded method as the live words have it at the last instant."""

    name: str
    begun: int
    ended: int
    begun_at: float  # of the last call, wall clock; 0 for never
    ended_at: float

    @property
    def running(self) -> int:
        """How many of its calls had not ended."""
        return max(0, self.begun - self.ended)


@dataclass(frozen=True, slots=True)
class CallsPoint:
    """Calls of ``method`` in the second or so before ``at``."""

    at: float
    method: str
    begun: int
    ended: int
    running: int


@dataclass(frozen=True, slots=True)
class TextPoint:
    """A line that somebody told."""

    at: float
    line: str


@dataclass(frozen=True, slots=True)
class CollectionPoint:
    """Garbage collections of the oldest generation until ``at``."""

    at: float
    seconds: float
    times: int
    found: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """The recording of one process. All times are wall-clock seconds.

    ``ending`` is how the process itself said that it ends, '' if it never did. ``group_kills`` and
    ``node_kills`` count the kernel's out-of-memory kills as the process last saw them; None is unknown.
    """

    process: ProcessId
    alive: bool
    title: str = ""
    actor_id: str = ""
    stderr: str = ""  # the file that its standard error goes to, if it is one
    group: str = ""  # the directory of its memory cgroup
    began_at: float = 0.0
    last_at: float = 0.0  # the newest time in the recording
    step: int = -1
    collecting_since: float = 0.0  # when the garbage collection began that had not ended; 0 for none
    ending: str = ""
    group_kills: int | None = None
    node_kills: int | None = None
    memory: tuple[MemoryPoint, ...] = ()
    steps: tuple[RoundPoint, ...] = ()
    call_rounds: tuple[RoundPoint, ...] = ()
    methods: tuple[MethodState, ...] = ()
    calls: tuple[CallsPoint, ...] = ()
    collections: tuple[CollectionPoint, ...] = ()
    events: tuple[TextPoint, ...] = ()

    @property
    def running(self) -> tuple[MethodState, ...]:
        """The methods whose calls had not ended, the one that began last first."""
        return tuple(sorted((m for m in self.methods if m.running), key=lambda m: -m.begun_at))

    @property
    def steps_per_s(self) -> float | None:
        """Steps a second over those that are kept; None for fewer than two."""
        if len(self.steps) < 2 or self.steps[-1].at <= self.steps[0].at:  # noqa: PLR2004 - a pair
            return None
        return (self.steps[-1].last - self.steps[0].last) / (self.steps[-1].at - self.steps[0].at)

    def growth(self) -> tuple[RecordedGrowth, str, str] | None:
        """Return how private memory grew to the end: by "step" or "call", and in which method; or None."""
        if self.steps:
            grown = growth([(one.last, one.private) for one in self.steps])
            return None if grown is None else (grown, "step", self._grower())
        by_method: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for one in self.call_rounds:
            by_method[one.method].append((one.last, one.private))
        method = self._grower()
        grown = growth(by_method.get(method, ()))
        return None if grown is None else (grown, "call", method)

    def sentence(self) -> str:
        """Say in a clause how memory grew; '' where it did not."""
        grown = self.growth()
        if grown is None:
            return ""
        how, unit, method = grown
        where = f" in `{method}`" if method else ""
        return f"RSS grew {in_bytes(how.bytes_a_round)} a {unit} from {unit} {how.since} on{where}"

    def _grower(self) -> str:
        """Return the method during which memory grew most; '' where it grew between calls."""
        gained: dict[str, int] = defaultdict(int)
        for before, after in zip(self.memory, self.memory[1:], strict=False):
            gained[after.method] += after.private - before.private
        return max(gained, key=lambda name: gained[name], default="")


def in_bytes(size: float) -> str:
    """Return bytes as a person writes them: 20 MB, 1.3 GB."""
    if abs(size) >= 1000 * _MB:
        return f"{size / 1000 / _MB:.1f} GB"
    return f"{size / _MB:.0f} MB" if abs(size) >= 10 * _MB else f"{size / _MB:.1f} MB"
