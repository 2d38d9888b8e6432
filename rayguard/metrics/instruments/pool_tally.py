"""What the pools of this process counted: plain numbers that ``rayguard.metrics.exporter`` reads at a scrape.

Each pool writes one ``PoolTally``, on its own loop; ``POOLS`` adds up those of one name, closed ones
included, so that a scrape never sees a counter go back. Names and help texts are
``rayguard.metrics.instruments.pool``.
"""

from __future__ import annotations

import os
import threading
from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from rayguard.harmless import harmless
from rayguard.recovery.tally import RECOVER_BOUNDS_S, Durations

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

# A free engine is found within a millisecond; behind a full pool a batch waits for its turn, up to an hour.
WAIT_BOUNDS_S = (0.001, 0.01, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3_600.0)
# From shared memory (tenths of a second) to a checkpoint that is read from afar, behind running requests.
UPDATE_BOUNDS_S = (0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 900.0)
# Others go on at once, and tell of tokens every tenth of a second; one alone has to start first.
RESUME_BOUNDS_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)

DRAINED = "drained"  # beside the kinds of ``rayguard.faults``: its actor was dismissed before it was done
RETRIED = "retried"  # its actor lives and could not answer it


class PoolEngineState(str, Enum):
    """Where one of the engines that a pool is to have stands."""

    STARTING = "starting"
    SERVING = "serving"
    FENCED = "fenced"  # it lives and gets no requests: its weights are not current
    DRAINING = "draining"
    REPLACING = "replacing"  # dead for good; another one will be hired
    LOST = "lost"  # dead for good, and not replaced


class RequestOutcome(str, Enum):
    """How a request ended."""

    DELIVERED = "delivered"
    REFUSED = "refused"  # it cannot be answered as it is
    QUARANTINED = "quarantined"
    LATE = "late"
    CANCELLED = "cancelled"  # by who asked
    FAILED = "failed"  # no engine was left, or the pool was closed


class Hire(str, Enum):
    """Why an actor was hired."""

    START = "start"
    RESIZE = "resize"
    DRAIN = "drain"  # in the place of one that goes
    REPLACEMENT = "replacement"  # in the place of one that is dead for good


class Push(str, Enum):
    """How a push of weights to one engine ended."""

    TAKEN = "taken"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class PoolNow:
    """What a pool has at this moment."""

    engines: Mapping[str, int] = field(default_factory=dict)  # by state
    waiting: int = 0
    running: int = 0

    def plus(self, other: PoolNow) -> PoolNow:
        """Return what both have."""
        engines = Counter(self.engines)
        engines.update(other.engines)
        return PoolNow(engines, self.waiting + other.waiting, self.running + other.running)


@dataclass(slots=True)
class PoolTally:
    """What one pool counted since it was made. All only grows; its loop alone writes."""

    name: str
    delivered: int = 0
    unanswered: Counter[str] = field(default_factory=Counter)  # requests by outcome
    tokens_saved: int = 0
    tokens_lost: int = 0
    losses: Counter[str] = field(default_factory=Counter)  # lives of actors, by the kind of what ended them
    interruptions: Counter[str] = field(default_factory=Counter)  # requests, by the same
    hires: Counter[str] = field(default_factory=Counter)  # by reason
    pushes: Counter[str] = field(default_factory=Counter)  # of weights to one engine, by outcome
    update_s: Durations = field(default_factory=lambda: Durations(UPDATE_BOUNDS_S))
    wait_s: Durations = field(default_factory=lambda: Durations(WAIT_BOUNDS_S))
    resume_s: Durations = field(default_factory=lambda: Durations(RESUME_BOUNDS_S))
    replace_s: Durations = field(default_factory=lambda: Durations(RECOVER_BOUNDS_S))
    # For the histograms, whose parts must agree; what is one number is written without it.
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    @property
    def failed(self) -> int:
        """Requests that ended without an answer."""
        return self.unanswered.total()

    def waited(self, seconds: Sequence[float]) -> None:
        """Count how long requests waited for an engine: all of a round at once."""
        with self._lock:
            counts, bounds = self.wait_s.counts, self.wait_s.bounds
            for one in seconds:
                counts[bisect_left(bounds, one)] += 1
            self.wait_s.sum += sum(seconds)

    def updated(self, seconds: float) -> None:
        """Count one weight update of all engines."""
        with self._lock:
            self.update_s.observe(seconds)

    def interrupted(self, kind: str, requests: int) -> None:
        """Count requests that were cut."""
        if requests:
            self.interruptions[kind] += requests

    def resumed(self, seconds: float) -> None:
        """Count how long it took until the first request of a lost life had its next token."""
        with self._lock:
            self.resume_s.observe(seconds)

    def replaced(self, seconds: float) -> None:
        """Count how long it took until another life served in the place of a lost one."""
        with self._lock:
            self.replace_s.observe(seconds)

    def add(self, other: PoolTally) -> None:
        """Add what another pool counted."""
        self.delivered += other.delivered
        self.tokens_saved += other.tokens_saved
        self.tokens_lost += other.tokens_lost
        for mine, its in (
            (self.unanswered, other.unanswered),
            (self.losses, other.losses),
            (self.interruptions, other.interruptions),
            (self.hires, other.hires),
            (self.pushes, other.pushes),
        ):
            mine.update(dict(its))  # copied in one step: its pool goes on counting
        with other._lock:
            _add(self.update_s, other.update_s)
            _add(self.wait_s, other.wait_s)
            _add(self.resume_s, other.resume_s)
            _add(self.replace_s, other.replace_s)


def _add(total: Durations, more: Durations) -> None:
    total.counts = [a + b for a, b in zip(total.counts, more.counts, strict=True)]
    total.sum += more.sum


@dataclass(frozen=True, slots=True)
class PoolReading:
    """All pools of one name, as they are now."""

    tally: PoolTally
    now: PoolNow


class Pools:
    """The pools of one process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[int, tuple[PoolTally, Callable[[], PoolNow]]] = {}
        self._past: dict[str, PoolTally] = {}

    def opened(self, tally: PoolTally, look: Callable[[], PoolNow]) -> None:
        """Show a pool from now on; ``look`` is called from any thread."""
        with self._lock:
            self._open[id(tally)] = (tally, look)

    def closed(self, tally: PoolTally) -> None:
        """Keep of a pool only what it counted."""
        with self._lock:
            if self._open.pop(id(tally), None) is not None:
                self._past.setdefault(tally.name, PoolTally(tally.name)).add(tally)

    def snapshot(self) -> dict[str, PoolReading]:
        """Return the pools by name."""
        with self._lock:
            open_, past = list(self._open.values()), list(self._past.values())
            read: dict[str, PoolReading] = {}
            for tally, look in [*((tally, PoolNow) for tally in past), *open_]:
                known = read.get(tally.name) or PoolReading(PoolTally(tally.name), PoolNow())
                known.tally.add(tally)
                with harmless("metrics"):
                    known = PoolReading(known.tally, known.now.plus(look()))
                read[tally.name] = known
        return read

    def begin_again(self) -> None:
        """Forget everything: a forked child has no pool, and inherits no lock that is held."""
        self.__init__()  # type: ignore[misc]  # a lock taken by another thread of the parent never opens


POOLS = Pools()
os.register_at_fork(after_in_child=POOLS.begin_again)
