"""How long a step of training may take before it is told, learned from the steps of the same run. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

LEAST_S = 60.0
TIMES = 5.0  # the longest of those before
_KNOWN_AFTER = 5  # steps: the first ones compile, and fill caches
_REMEMBERED = 100


@dataclass(slots=True)
class StepPace:
    """The durations of a run's steps.

    The longest counts, not the usual one: in GRPO one step in several makes the samples for the others.
    """

    _seen: deque[float] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))

    def took(self, seconds: float) -> None:
        """A step has ended well."""
        self._seen.append(seconds)

    @property
    def longest_s(self) -> float:
        """The longest step that is remembered."""
        return max(self._seen, default=0.0)

    def suspicious_s(self) -> float | None:
        """Return after how many seconds a step is told; None as long as nothing is known."""
        return None if len(self._seen) < _KNOWN_AFTER else max(LEAST_S, TIMES * self.longest_s)
