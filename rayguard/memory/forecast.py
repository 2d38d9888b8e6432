"""When does it run out, if it goes on like this? And whose growth is it?

Pure: ``Trend`` is fed, ``forecast`` answers, mostly with silence. What is proven is said by ``straight.py``,
what is remembered by ``lows.py``. Not here: what to do about it (``relief``), and which line of code grows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from rayguard.errors import ConfigError
from rayguard.memory.lows import Lows
from rayguard.memory.reading import Quantity
from rayguard.memory.straight import Rise, rise
from rayguard.process.recording import in_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable

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


def _whose(quantity: Quantity, who: str, pid: int) -> str:
    of = f" of {who}" if who else ""
    return f"{quantity.value}{of} (pid {pid})" if pid else f"{quantity.value}{of}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """How much something grew, straight, in bytes, and since when. ``share``: of the growth it explains.

    ``mostly``: the finer quantity that makes most of it, where one does.
    """

    quantity: Quantity
    who: str = ""
    pid: int = 0
    grown: float
    slope_per_s: float
    slope_per_step: float | None = None
    since_step: int = -1
    share: float = 1.0
    mostly: Quantity | None = None

    def sentence(self) -> str:
        """Say it in one sentence."""
        pace = (
            f"{in_bytes(self.slope_per_s * 60)} a minute"
            if self.slope_per_step is None
            else f"{in_bytes(self.slope_per_step)} a step since step {self.since_step}"
        )
        part = "" if self.share >= 0.995 else f", {self.share:.0%} of the growth"  # noqa: PLR2004 - rounds to 100 %
        mostly = "" if self.mostly is None else f", most of it {self.mostly.value}"
        whose = _whose(self.quantity, self.who, self.pid)
        return f"{whose} grew {in_bytes(self.grown)}, {pace}{part}{mostly}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """When ``limit`` (bytes) is reached; ``in_steps`` and ``slope_per_step`` are None where nothing steps."""

    quantity: Quantity
    who: str = ""
    pid: int = 0
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
        whose = _whose(self.quantity, self.who, self.pid)
        if self.slope_per_step is None or self.in_steps is None:
            pace, when = f"{in_bytes(self.slope_per_s * 60)} a minute", left
        else:
            pace = f"{in_bytes(self.slope_per_step)} a step since step {self.since_step}"
            when = f"{left} ({self.in_steps:.1f} steps)"
        return f"{whose} grows {pace}; at this pace it reaches {in_bytes(self.limit)} in {when}"


def _reach(risen: Rise) -> float:
    """Return bytes beyond its end that a rise speaks for; less than 0: for nothing."""
    if risen.pace > _FASTEST or risen.swing > _SWING * risen.grown:
        return -1.0
    far = next(far for steps, far in _FAR if risen.steps <= steps) if risen.steps > 0 else _FAR_STEPLESS
    return min(min(risen.sure, far) * risen.grown, _ROOM * risen.room)


class Trend:
    """The course of one quantity of one process, in a few kilobytes.

    ``add`` takes whatever it is given; ``forecast`` and ``growth`` cost a millisecond where something is new.
    Not for several threads at once.
    """

    __slots__ = ("_first_at", "_lows", "_rise", "_seen", "pid", "quantity", "who")

    def __init__(self, quantity: Quantity, who: str = "", pid: int = 0) -> None:
        self.quantity, self.who, self.pid = quantity, who, pid
        self._lows = Lows()
        self._first_at: float | None = None
        self._seen = -1
        self._rise: Rise | None = None

    def add(self, at: float, step: int, used: float) -> None:
        """Take ``used`` bytes at ``at`` (monotonic seconds); ``step``: the last that had ended, or -1."""
        self._lows.add(at, step, used)
        if self._first_at is None and self._lows.count:
            self._first_at = self._lows.at

    def forget(self) -> None:
        """Begin anew: something was given back on purpose, or the process is another one."""
        self._lows.forget()
        self._first_at = None

    @property
    def nbytes(self) -> int:
        """Bytes of what is remembered: bounded."""
        return self._lows.nbytes

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
            who=self.who,
            pid=self.pid,
            in_s=in_s,
            in_steps=in_steps,
            limit=int(limit),
            slope_per_s=per_s,
            slope_per_step=per_step,
            since_step=int(risen.since_step),
            confidence=round(risen.sure * (1 - 0.3 * left / reach if reach else 1.0), 3),
        )

    def growth(self) -> Growth | None:
        """Return how it grows, however far away its limit; None where it does not, or nobody can tell."""
        risen = self._risen()
        if risen is None:
            return None
        return Growth(
            quantity=self.quantity,
            who=self.who,
            pid=self.pid,
            grown=risen.grown,
            slope_per_s=risen.grown / risen.seconds,
            slope_per_step=risen.grown / risen.steps if risen.steps > 0 else None,
            since_step=int(risen.since_step),
        )

    def since(self) -> float | None:
        """Return when the growth of now began, in the seconds it was fed with; None where nothing grows."""
        risen = self._risen()
        return None if risen is None else risen.since

    def grown_since(self, at: float) -> float:
        """Return bytes grown since ``at``, straight or not; all there is of a process that came later."""
        bins = self._lows.bins()
        if not bins or self._first_at is None:
            return 0.0
        now = median(each.low for each in bins[-3:])
        before = next((number for number, each in enumerate(bins) if each.at >= at), len(bins) - 1)
        born = self._first_at > at and self.pid > 0  # a new process
        return now - (0.0 if born else median(each.low for each in bins[before : before + 3]))


# What a quantity is made of, and the parts of one another are not counted twice.
PARTS: dict[Quantity, tuple[Quantity, ...]] = {
    Quantity.NODE: (Quantity.PRIVATE, Quantity.STORE, Quantity.SHM),
    Quantity.PRIVATE: (Quantity.HEAP, Quantity.NATIVE),
    Quantity.DEVICE: (Quantity.TORCH, Quantity.KV_CACHE),
}
_LEAST_SHARE, _MOST = 0.05, 0.6


def explain(whole: Trend, parts: Iterable[Trend]) -> tuple[Growth, ...]:
    """Say which of ``parts`` make ``whole`` grow, the largest first; none where it does not grow.

    Shares are of what ``whole`` has grown since its growth began; what they lack to 1 is not in ``parts``.
    """
    grows, since = whole.growth(), whole.since()
    if grows is None or since is None:
        return ()
    trends = tuple(parts)
    made = PARTS.get(whole.quantity, ())
    seconds = grows.grown / grows.slope_per_s
    total = whole.grown_since(since)  # measured as the parts are, so that what is coarse in both cancels out
    rows = []
    for trend in trends:
        grown = trend.grown_since(since)
        if trend.quantity not in made or grown <= max(0.0, _LEAST_SHARE * total):
            continue
        own = trend.growth()
        rows.append(
            Growth(
                quantity=trend.quantity,
                who=trend.who,
                pid=trend.pid,
                grown=grown,
                slope_per_s=grown / seconds,
                slope_per_step=own.slope_per_step if own is not None else None,
                since_step=own.since_step if own is not None else -1,
                share=min(1.0, grown / total) if total > 0 else 1.0,
                mostly=_mostly(trend, trends, since, grown),
            )
        )
    return tuple(sorted(rows, key=lambda row: -row.grown))


def _mostly(whole: Trend, trends: Iterable[Trend], since: float, grown: float) -> Quantity | None:
    """Return the finer quantity of the same process that makes most of its growth."""
    finer = [t for t in trends if t.pid == whole.pid and t.quantity in PARTS.get(whole.quantity, ())]
    return next((t.quantity for t in finer if t.grown_since(since) >= _MOST * grown), None)
