"""What rayguard counted in this process: plain numbers, read by metrics at scrape time.

The hot path only adds to these integers; nothing here knows Prometheus. One ``Tally`` per process
(``TALLY``); tests make their own.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rayguard.recovery.incident import Incident

KEPT_DURATIONS = 4_096


@dataclass(slots=True)
class EngineTally:
    """The numbers of one engine slot; they go on counting across epochs."""

    name: str
    epoch: int = 0
    rung: int = 0
    serving: bool = False
    restarts: int = 0
    weight_version: str = ""
    requests_running: int = 0
    tokens_generated: int = 0
    tokens_saved: int = 0
    tokens_lost: int = 0


@dataclass(slots=True)
class Tally:
    """All numbers of one process."""

    calls: Counter[str] = field(default_factory=Counter)  # by class name
    incidents: Counter[tuple[str, str, str, str]] = field(
        default_factory=Counter
    )  # kind, scope, remedy, outcome
    guard_errors: Counter[str] = field(default_factory=Counter)  # by the piece of rayguard that failed
    detect_s: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT_DURATIONS))
    recover_s: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT_DURATIONS))
    engines: dict[str, EngineTally] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def engine(self, name: str) -> EngineTally:
        """Return the numbers of the engine slot ``name``, made on first use."""
        with self._lock:
            return self.engines.setdefault(name, EngineTally(name))

    def closed(self, incident: Incident) -> None:
        """Count a closed incident and its durations."""
        with self._lock:
            key = (incident.kind, incident.scope, incident.remedy, incident.outcome.value)
            self.incidents[key] += 1
            if incident.detect_s is not None:
                self.detect_s.append(incident.detect_s)
            if incident.recover_s is not None:
                self.recover_s.append(incident.recover_s)

    def guard_error(self, piece: str) -> None:
        """Count an error inside rayguard itself (it was logged where it was caught)."""
        with self._lock:
            self.guard_errors[piece] += 1


TALLY = Tally()
