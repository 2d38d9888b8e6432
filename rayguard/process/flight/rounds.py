"""Which steps of a training get a record of their own. Pure: who writes it is ``writer``."""

from __future__ import annotations

_LONG_AGO = -(1 << 62)
# Steps that are shorter share a record: so the 512 that are kept are two minutes at least.
ROUND_NS = 250_000_000


class Steps:
    """Steps that share one record: they are too short for one each, and two minutes are to be kept."""

    def __init__(self) -> None:
        self._first: int | None = None
        self._recorded_ns = _LONG_AGO
        self._low = self._high = -1

    def see(self, private: int) -> None:
        """Take in the memory of the steps that have not been recorded yet."""
        self._low = private if self._low < 0 else min(self._low, private)
        self._high = max(self._high, private)

    def ended(self, step: int, method: int, now: int) -> tuple[int, ...] | None:
        """Return the numbers to be recorded (``layout``) now that ``step`` has ended."""
        first = step if self._first is None else min(self._first, step)
        if self._low < 0 or now - self._recorded_ns < ROUND_NS:
            self._first = first
            return None
        done = (first, step, self._low, self._high, method)
        self._first, self._recorded_ns, self._low, self._high = None, now, -1, -1
        return done
