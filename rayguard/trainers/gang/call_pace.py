"""How long a call of a gang may take: learned from the calls of the same method. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from statistics import median

LEAST_S = 5.0
TIMES = 15.0  # a step that is ten times as slow as the others is none that hangs
_KNOWN_AFTER = 3  # calls: the first ones compile, and fill caches
_REMEMBERED = 33


@dataclass(slots=True)
class CallPace:
    """The durations of a gang's calls, by method.

    ``first_s``: what a call may take as long as nothing is known. ``fixed_s``: what it may take in any case,
    where its user says that.
    """

    first_s: float
    fixed_s: float | None = None
    _seen: dict[str, deque[float]] = field(default_factory=dict)

    def took(self, method: str, seconds: float) -> None:
        """A call has ended well."""
        self._seen.setdefault(method, deque(maxlen=_REMEMBERED)).append(seconds)

    def changed(self) -> None:
        """Forget all: the gang has another size, and calls take another time."""
        self._seen.clear()

    def suspicious_s(self, method: str) -> float:
        """Return after how many seconds a call is looked at: it may hang."""
        if self.fixed_s is not None:
            return self.fixed_s
        seen = self._seen.get(method, ())
        if len(seen) < _KNOWN_AFTER:
            return self.first_s
        return min(self.first_s, max(LEAST_S, TIMES * median(seen)))

    def over_s(self) -> float:
        """Return after how many seconds a call is over, also where ranks seem to be at work."""
        return self.first_s if self.fixed_s is None else self.fixed_s
