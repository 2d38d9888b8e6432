"""How long a job has run, and for how long of that something of it was broken."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

LATE_S = 600.0  # what is told later than this of an earlier time changes nothing any more


@dataclass(frozen=True, slots=True, kw_only=True)
class JobClock:
    """Times are wall-clock seconds. Invariant: ``interrupted_s`` never falls."""

    began_at: float
    now: float = 0.0
    interrupted_s: float = 0.0
    settled_s: float = 0.0  # of what is before ``settled_until``
    settled_until: float = 0.0

    @property
    def wall_s(self) -> float:
        """Return how long the job has run."""
        return max(0.0, self.now - self.began_at)

    def at(self, now: float, spans: Iterable[tuple[float, float | None]]) -> JobClock:
        """Return the clock at ``now``; ``spans``: from when until when incidents were open, None is now."""
        now = max(now, self.now)
        floor = max(self.settled_until, self.began_at)
        bounded = [(max(since, floor), min(now if until is None else until, now)) for since, until in spans]
        union = _union(bounded)
        settle = max(floor, now - LATE_S)
        settled = self.settled_s + sum(max(0.0, min(until, settle) - since) for since, until in union)
        total = self.settled_s + sum(until - since for since, until in union)
        return replace(
            self,
            now=now,
            interrupted_s=max(self.interrupted_s, total),
            settled_s=settled,
            settled_until=settle,
        )


def _union(spans: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the same time as spans that do not overlap."""
    apart: list[tuple[float, float]] = []
    for since, until in sorted(span for span in spans if span[1] > span[0]):
        if apart and since <= apart[-1][1]:
            apart[-1] = (apart[-1][0], max(apart[-1][1], until))
        else:
            apart.append((since, until))
    return apart
