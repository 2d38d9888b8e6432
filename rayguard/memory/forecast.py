"""When does it run out, if it goes on like this?

Pure: ``Trend`` is fed, ``forecast`` answers, mostly with silence. What is proven is said by ``linear_rise``,
what is remembered by ``history``. Not here: what to do about it (``relief``), and which line of code grows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rayguard.errors import ConfigError
from rayguard.memory.history import Lows
from rayguard.memory.linear_rise import Rise, rise
from rayguard.process.flight.recording import in_bytes

if TYPE_CHECKING:
    from rayguard.memory.reading import Quantity

# How far a line is drawn on, in shares of what has grown: of 10 GB over 30 steps, 5 GB more at the most.
# A rise of few steps must be drawn further, to be told three steps ahead; one of many, or none, can wait.
# Tuned on tests/benchmarks/memory/traces.py; bench_forecast.py says with which seeds.
_FAR = ((10, 0.7), (40, 0.5), (math.inf, 0.3))  # up to so many steps
_FAR_STEPLESS = 0.2
_ROOM = 0.7  # of what it would still grow by if it went on slowing down
_FASTEST = 2.4  # of a second half so much steeper than the whole: something else has begun
_SWING = 1.0  # of the growth comes and goes: it is not growth that fills the rest


@dataclass(frozen=True, slots=True, kw_only=True)
class Horizon:
    """How far ahead is looked: growth that takes longer than both is growth, and no forecast.

    Raises ``ConfigError`` for a horizon that is not ahead.
    """

    seconds: float = 300.0
    steps: float = 10.0

    def __post_init__(self) -> None:
        """Refuse a horizon in the past."""
        if not (self.seconds >= 0 and self.steps >= 0 and self.seconds + self.steps > 0):
            raise ConfigError(f"a horizon must be ahead, got {self.seconds} s and {self.steps} steps")

    def holds(self, in_s: float, in_steps: float | None) -> bool:
        """Say whether that is near enough to act on."""
        return in_s <= self.seconds or (in_steps is not None and in_steps <= self.steps)


HORIZON = Horizon()


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """When ``limit`` (bytes) is reached; ``in_steps`` and ``slope_per_step`` are None where nothing steps."""

    quantity: Quantity
    in_s: float
    in_steps: float | None
    limit: int
    slope_per_s: float
    slope_per_step: float | None
    since_step: int
    confidence: float

    def sentence(self) -> str:
        """Say it in one sentence."""
        left = f"{self.in_s:.0f} s" if self.in_s < 600 else f"{self.in_s / 60:.0f} min"  # noqa: PLR2004 - ten minutes
        if self.slope_per_step is None or self.in_steps is None:
            pace, when = f"{in_bytes(self.slope_per_s * 60)} a minute", left
        else:
            pace = f"{in_bytes(self.slope_per_step)} a step since step {self.since_step}"
            when = f"{left} ({self.in_steps:.1f} steps)"
        limit = in_bytes(self.limit)
        return f"{self.quantity.value} grows {pace}; at this pace it reaches {limit} in {when}"


def _reach(risen: Rise) -> float:
    """Return bytes beyond its end that a rise speaks for; less than 0: for nothing."""
    if risen.pace > _FASTEST or risen.swing > _SWING * risen.grown:
        return -1.0
    far = next(far for steps, far in _FAR if risen.steps <= steps) if risen.steps > 0 else _FAR_STEPLESS
    return min(min(risen.sure, far) * risen.grown, _ROOM * risen.room)


class Trend:
    """The course of one quantity of one process, in a few kilobytes.

    ``add`` takes whatever it is given; ``forecast`` costs a millisecond where something is new.
    Not for several threads at once.
    """

    __slots__ = ("_lows", "_rise", "_seen", "quantity")

    def __init__(self, quantity: Quantity) -> None:
        self.quantity = quantity
        self._lows = Lows()
        self._seen = -1
        self._rise: Rise | None = None

    def add(self, at: float, step: int, used: float) -> None:
        """Take ``used`` bytes at ``at`` (monotonic seconds); ``step``: the last that had ended, or -1."""
        self._lows.add(at, step, used)

    def forget(self) -> None:
        """Begin anew: something was given back on purpose, or the process is another one."""
        self._lows.forget()

    def _risen(self) -> Rise | None:
        if self._seen != self._lows.count:
            self._seen, self._rise = self._lows.count, rise(self._lows.bins())
        return self._rise

    def forecast(self, limit: float, horizon: Horizon = HORIZON) -> Forecast | None:
        """Return when ``limit`` bytes are reached; None where that is not proven, or beyond the horizon."""
        risen = self._risen()
        if risen is None or not 0 < limit < math.inf:
            return None
        left = max(0.0, limit - risen.level - risen.swing)
        reach = _reach(risen)
        if left > reach:
            return None
        per_s = risen.grown / risen.seconds * risen.pace
        per_step = risen.grown / risen.steps * risen.pace if risen.steps > 0 else None
        in_s = max(0.0, left / per_s - (self._lows.at - risen.until))
        in_steps = left / per_step if per_step else None
        if not horizon.holds(in_s, in_steps):
            return None
        return Forecast(
            quantity=self.quantity,
            in_s=in_s,
            in_steps=in_steps,
            limit=int(limit),
            slope_per_s=per_s,
            slope_per_step=per_step,
            since_step=int(risen.since_step),
            confidence=round(risen.sure * (1 - 0.3 * left / reach if reach else 1.0), 3),
        )
