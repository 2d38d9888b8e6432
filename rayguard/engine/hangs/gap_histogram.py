"""How long an engine usually takes from one sign of progress to the next: a distribution that forgets.

Pure. One ``GapHistogram`` per phase of an engine's work; what is made of it is ``watchdog``. A high
quantile and not the longest gap: one stall that was survived must not make the engine untouchable for ever.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

USUAL_SHARE = 0.99
MOST = 2048  # looks; then the old ones count half, so that the last half hour weighs most

# A quarter of a second to half an hour, two bounds for each doubling: at most 41 % too long, never too short.
BOUNDS_S = tuple(0.25 * 2 ** (k / 2) for k in range(27))


@dataclass(frozen=True, slots=True)
class GapHistogram:
    """Gaps by length. Invariant: one place for each bound and one for what is longer than all."""

    counts: tuple[int, ...] = (0,) * (len(BOUNDS_S) + 1)

    @property
    def seen(self) -> int:
        """How many gaps it knows."""
        return sum(self.counts)

    def after(self, gap: float) -> GapHistogram:
        """Return the pace that has also seen ``gap``."""
        place = bisect_left(BOUNDS_S, gap)
        counts = [count + (at == place) for at, count in enumerate(self.counts)]
        return GapHistogram(tuple(count // 2 for count in counts) if sum(counts) > MOST else tuple(counts))

    def usual(self, share: float = USUAL_SHARE) -> float:
        """Return what ``share`` of the gaps stay below; 0 when none is known."""
        wanted, below = share * self.seen, 0
        for bound, count in zip((*BOUNDS_S, BOUNDS_S[-1]), self.counts, strict=True):
            below += count
            if below and below >= wanted:
                return bound
        return 0.0
