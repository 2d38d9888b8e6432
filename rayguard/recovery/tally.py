"""What rayguard counted in this process: plain numbers, read by ``rayguard.metrics`` at scrape time.

One ``Tally`` per process (``TALLY``); tests make their own. Nothing here knows Prometheus, a port or a file:
names and help texts are ``rayguard.metrics.instruments.process``, the page that people read is
``rayguard.recovery.status``.

Every number but the gauges of ``EngineTally`` only grows, so a scrape never sees a counter go back.
"""

from __future__ import annotations

import os
import threading
from bisect import bisect_left
from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from rayguard.harmless import count, errors
from rayguard.recovery.remedy import Action

if TYPE_CHECKING:
    from rayguard.recovery.incident import Incident

# Detection is meant to take milliseconds (promise: p99 <= 0.5 s) and a hang at most some minutes.
DETECT_BOUNDS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
# Recovery runs from a spare (under a second) over a prefork (seconds) to a cold start with loading (minutes).
RECOVER_BOUNDS_S = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 900.0)


@dataclass(slots=True)
class Durations:
    """How long something took, as bucket counts: monotone, of fixed size, for ever.

    Invariant: ``counts`` has one place per bound and one for what is longer than all of them.
    """

    bounds: tuple[float, ...]
    counts: list[int] = field(default_factory=list)
    sum: float = 0.0

    def __post_init__(self) -> None:
        """Start with empty buckets."""
        self.counts = self.counts or [0] * (len(self.bounds) + 1)

    def observe(self, seconds: float) -> None:
        """Count one duration. One below zero (two clocks disagree) counts as zero: the sum never falls."""
        if seconds != seconds:  # noqa: PLR0124 - NaN, which would poison the sum for ever
            return
        seconds = max(0.0, seconds)
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.sum += seconds

    def copy(self) -> Durations:
        """Return these durations as they are now."""
        return Durations(self.bounds, list(self.counts), self.sum)


@dataclass(slots=True)
class EngineTally:
    """The numbers of one engine slot; they go on counting across epochs. One owner writes them."""

    name: str
    epoch: int = 0
    rung: int = 0
    serving: bool = False
    standing: str = "serving"  # or what its owner does with it: "in a call", "paused", "asleep"
    restarts: int = 0
    weight_version: str = ""
    requests_running: int = 0
    tokens_generated: int = 0
    tokens_saved: int = 0
    tokens_lost: int = 0
    settings: tuple[str, ...] = ()  # safe settings in force
    standby_ready: bool = False
    standby_failures: int = 0
    audited: int = 0  # answers that were made again and compared
    audited_wrong: int = 0
    spoiled: int = 0  # requests that were ended since their logits were NaN or infinite

    @property
    def state(self) -> str:
        """What it does, in a word or two; one that died asleep is built again when it is asked for."""
        return self.standing if self.serving or self.standing == "asleep" else "not serving"


MAX_JOBS = 32  # whose incidents one process keeps apart


@dataclass(slots=True)
class Tally:
    """All numbers of one process.

    ``calls`` is the hot path: write ``tally.calls[name] += 1``, without a lock (45 ns; 230 ns with one). It
    is a ``defaultdict``, whose lookup and missing-key path are C, so CPython switches no thread inside the
    statement: 8 threads lost 0 of 2 000 000 calls, and 6 000 races for a first call lost none. (A ``Counter``
    lost 10 of 12 000 first calls: its ``__missing__`` is Python.) Without a GIL, calls that race may be lost;
    incidents and guard errors are counted under the lock and never are.
    """

    calls: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))  # by class name
    # Kind, scope, remedy, outcome, and the job that was hit: an agent's are of any.
    incidents: Counter[tuple[str, str, str, str, str]] = field(default_factory=Counter)
    guard_errors: Counter[str] = field(default_factory=Counter)  # by the piece of rayguard that failed
    detect_s: Durations = field(default_factory=lambda: Durations(DETECT_BOUNDS_S))
    recover_s: Durations = field(default_factory=lambda: Durations(RECOVER_BOUNDS_S))
    engines: dict[str, EngineTally] = field(default_factory=dict)
    reliefs: Counter[str] = field(default_factory=Counter)  # by kind
    relieved_bytes: Counter[str] = field(default_factory=Counter)  # by kind of relief
    memory_bytes: int = 0  # of this process, shared with nobody; its engine's are apart
    engine_memory_bytes: int = 0  # of the processes of its engine, as of the last look
    memory_forecast_s: float | None = None  # until memory runs out, where a forecast says that it will
    last_incident: str = ""  # id of the newest incident, open or closed
    metrics_url: str = ""  # where this process serves its metrics, if it does
    # An RLock: a signal handler or finalizer that counts while its own thread is counting must not hang.
    _lock: threading.RLock = field(default_factory=threading.RLock, repr=False, compare=False)

    def engine(self, name: str) -> EngineTally:
        """Return the numbers of the engine slot ``name``, made on first use."""
        with self._lock:
            return self.engines.setdefault(name, EngineTally(name))

    def opened(self, incident: Incident) -> None:
        """Note an incident that has just been detected; it is counted when it closes."""
        self.last_incident = incident.id

    def closed(self, incident: Incident) -> None:
        """Count a closed incident and its durations."""
        remedy = incident.remedy or Action.NONE.value  # an empty label would have no name in a dashboard
        key = (incident.kind, incident.scope, remedy, incident.outcome.value, incident.job_id)
        with self._lock:
            self.last_incident = incident.id
            self.incidents[key] += 1
            self._forget_a_job()
            if incident.detect_s is not None:
                self.detect_s.observe(incident.detect_s)
            if incident.recover_s is not None:
                self.recover_s.observe(incident.recover_s)

    def _forget_a_job(self) -> None:
        """Let the job go that had its first incident longest ago, where there are too many: an agent's."""
        jobs = list(dict.fromkeys(job for *_, job in self.incidents))
        if len(jobs) > MAX_JOBS:
            self.incidents = Counter({key: n for key, n in self.incidents.items() if key[-1] != jobs[0]})

    def relieved(self, relief: str, freed: int) -> None:
        """Count a relief and the bytes that it gave back."""
        with self._lock:
            self.reliefs[relief] += 1
            self.relieved_bytes[relief] += freed

    def memory_is(self, *, private: int, engine: int, forecast_s: float | None) -> None:
        """Note what the memory watcher has seen last."""
        self.memory_bytes, self.engine_memory_bytes = private, engine
        self.memory_forecast_s = forecast_s

    def guard_error(self, piece: str) -> None:
        """Count an error inside rayguard itself (it was logged where it was caught)."""
        count(piece, self.guard_errors)

    def snapshot(self) -> Tally:
        """Return a copy that belongs together: no incident is in one number and missing in another.

        ``dict(...)`` copies in C in one step, so it is safe beside the unlocked ``calls`` too.
        """
        with self._lock:
            return replace(
                self,
                calls=defaultdict(int, dict(self.calls)),
                incidents=Counter(dict(self.incidents)),
                guard_errors=Counter(dict(self.guard_errors)),
                detect_s=self.detect_s.copy(),
                recover_s=self.recover_s.copy(),
                engines={name: replace(engine) for name, engine in self.engines.items()},
                reliefs=Counter(dict(self.reliefs)),
                relieved_bytes=Counter(dict(self.relieved_bytes)),
                _lock=threading.RLock(),
            )

    def begin_again(self) -> None:
        """Forget everything: a forked child counts its own, and inherits no lock that is held."""
        self.__init__(guard_errors=self.guard_errors)  # type: ignore[misc]  # a lock that is held never opens


TALLY = Tally(guard_errors=errors)  # those of `harmless`, which forgets them itself in a forked child
os.register_at_fork(after_in_child=TALLY.begin_again)
