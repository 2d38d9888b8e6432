"""What is usual of one curve of a run, and since when it lies beyond: median and MAD, no model of training.

Who asks, and what is told, is ``rayguard.trainers.training_alarms``'s.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

LEAST = 20  # values that tell what is usual
SLOWEST = 10  # newest values that tell nothing of what is usual: a collapse that takes so long is seen whole
_SIGMA = 1.4826  # of a normal distribution, for its MAD
_EQUAL = 1e-9  # rewards that differ by less, in proportion, are equal
_ALL_EQUAL_AT = 0.9  # share of groups that give no gradient
_LEAST_KL = 1e-3  # nats: below, nothing is blown up, however much it grew
# How far beyond the median, in spreads, and in proportion to the curve itself: a spread alone is too little
# for a curve that stands still, a proportion alone for a noisy one.
_FAR, _FARTHER = 6.0, 8.0
_LOST, _LOST_SLOWLY, _TIMES, _HALF, _FLOOR = 0.3, 0.7, 3.0, 0.5, 0.05


class Best(NamedTuple):
    """The highest median that a curve has had, and its spread then."""

    step: int
    median: float
    spread: float


class UsualRange:
    """The threshold of one curve, from its first values and those of the window."""

    def __init__(self, kind: str, window: int, grace: int) -> None:
        self.kind, self.window, self.grace = kind, window, grace

    def threshold(
        self, first: Sequence[float], values: Sequence[float], best: Best | None = None
    ) -> float | None:
        """Return beyond which value something is wrong, None where nothing is known yet.

        Args:
            first: The values of the grace.
            values: Those of the window.
            best: When the curve stood highest.
        """
        if len(first) < self.grace or len(values) < LEAST:
            return None
        usual = sorted(values)
        median, spread = median_and_spread(usual)
        low, high = usual[len(usual) // 10], usual[-1 - len(usual) // 10]
        if self.kind == "reward_collapse":
            return _fallen(median, spread, statistics.median(first), best or Best(0, median, spread))
        if self.kind == "entropy_collapse":
            return _shrunk(median, spread, low, statistics.median(first))
        if self.kind == "zero_variance":
            return _ALL_EQUAL_AT
        least = _LEAST_KL if self.kind == "kl_blow_up" else 0.0
        if not any(usual):
            return None if not least else _FARTHER * least
        return max(median + _FARTHER * max(spread, 0.05 * abs(median), least), _TIMES * high)


def median_and_spread(values: Sequence[float]) -> tuple[float, float]:
    """Return the median, and the deviation that a normal distribution with this MAD has."""
    median = statistics.median(values)
    return median, _SIGMA * statistics.median(abs(one - median) for one in values)


def _fallen(median: float, spread: float, began: float, best: Best) -> float | None:
    """Return which reward is a collapse: far below at once, or most of what the run had gained is lost."""
    gained, won = max(0.0, median - began), best.median - began
    spread = max(spread, 0.02 * abs(median), 0.02 * gained)
    if spread <= 0:
        return None  # always zero: nobody knows what is much
    sudden = min(median - _FAR * spread, median - _LOST * gained)
    return max(sudden, best.median - _LOST_SLOWLY * won) if won > _FAR * best.spread else sudden


def _shrunk(median: float, spread: float, low: float, began: float) -> float | None:
    """Return which entropy is a collapse: half of the lowest at once, or next to nothing of the beginning."""
    if began <= 0 or low <= 0:
        return None
    return max(min(median - _FAR * max(spread, 0.02 * median), _HALF * low), _FLOOR * began)


class Curve:
    """The values of one curve, and how many of the newest in a row lie beyond its threshold."""

    def __init__(self, usual: UsualRange, patience: int) -> None:
        self._usual, self._patience = usual, patience
        self._first: list[tuple[int, float]] = []
        self._values: list[tuple[int, float]] = []
        self._best: Best | None = None
        self._beyond: list[int] = []  # the steps in a row that lay beyond
        self._back = patience  # steps in a row that did not; an alarm waits for ``patience`` of them
        self._on = False  # an alarm has been told, and the curve is not back yet
        self.verdict: tuple[int, float, float] = (0, 0.0, 0.0)  # since, threshold, usual; of the last alarm
        self.last = 0.0  # the value that was judged: of zero variance, over several steps

    @property
    def threshold(self) -> float | None:
        """Return what the next value is judged by."""
        first = [value for _, value in self._first]
        return self._usual.threshold(first, self._reference(), self._best)

    def observe(self, step: int, value: float) -> bool:
        """Take a value in; say whether an alarm begins with it."""
        pooled = self._usual.kind == "zero_variance"
        limit = self.threshold
        self._values = [*self._values[-(self._usual.window + SLOWEST) + 1 :], (step, value)]
        if len(self._first) < self._usual.grace:
            self._first.append((step, value))
        self._note_best(step)
        newest = [one for _, one in self._values[-SLOWEST:]]
        self.last = sum(newest) / len(newest) if pooled else value
        if limit is None or not self._is_beyond(limit):
            self._back += 1
            self._beyond = []
            self._on = self._on and self._back < self._patience
            return False
        self._back = 0
        # Pooled over ten steps it needs no patience on top, and began with them.
        self._beyond = [*self._beyond, step] if not pooled else [self._values[-len(newest)][0]]
        if self._on or len(self._beyond) < (1 if pooled else self._patience):
            return False
        self._on = True
        usual = limit if pooled else statistics.median(self._reference() or [value])
        self.verdict = (self._beyond[0], limit, usual)
        return True

    def forget_from(self, step: int) -> None:
        """Forget what was seen of ``step`` and later ones: the run went back."""
        self._first = [one for one in self._first if one[0] < step]
        self._values = [one for one in self._values if one[0] < step]
        self._beyond = [one for one in self._beyond if one < step]
        self._on = False
        if self._best is not None and self._best.step >= step:
            self._best = None

    def state_dict(self) -> dict[str, object]:
        """Return all of it in plain values."""
        return {
            "first": [list(one) for one in self._first],
            "values": [list(one) for one in self._values],
            "beyond": list(self._beyond),
            "best": None if self._best is None else list(self._best),
            "back": self._back,
            "on": self._on,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from it."""
        first = [(int(step), float(value)) for step, value in state["first"]]
        values = [(int(step), float(value)) for step, value in state["values"]]
        beyond, back, on = [int(one) for one in state["beyond"]], int(state["back"]), bool(state["on"])
        best = state["best"]
        self._best = None if best is None else Best(int(best[0]), float(best[1]), float(best[2]))
        self._first, self._values, self._beyond, self._back, self._on = first, values, beyond, back, on

    def _note_best(self, step: int) -> None:
        usual = self._reference()
        if self._usual.kind == "reward_collapse" and len(usual) >= LEAST:
            median, spread = median_and_spread(usual)
            if self._best is None or median > self._best.median:
                self._best = Best(step, median, spread)

    def _reference(self) -> list[float]:
        return [value for _, value in self._values[: -SLOWEST or None]]

    def _is_beyond(self, limit: float) -> bool:
        if self._usual.kind in ("reward_collapse", "entropy_collapse"):
            return self.last < limit
        return self.last >= limit if self._usual.kind == "zero_variance" else self.last > limit


def shared_equal(groups: object) -> float | None:
    """Return the share of groups whose rewards are all equal, None where there is no group of two."""
    rows = _listed(groups)
    found = [equal for row in rows if (equal := _all_equal(row)) is not None]
    return sum(found) / len(found) if found else None


def _all_equal(row: object) -> bool | None:
    try:
        rewards = [float(one) for one in _listed(row) if one is not None]  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError, RuntimeError):
        return None
    rewards = [one for one in rewards if math.isfinite(one)]
    if len(rewards) < 2:  # noqa: PLR2004 - one alone has no spread
        return None
    return max(rewards) - min(rewards) <= _EQUAL * max(1.0, abs(rewards[0]))


def _listed(values: object) -> list[object]:
    """Return what is in a list, a dictionary, a tensor (in one transfer); nothing of what is none."""
    listed = getattr(values, "tolist", None)
    plain: object = listed() if callable(listed) else values
    if isinstance(plain, Mapping):
        plain = plain.values()
    return list(plain) if isinstance(plain, Iterable) and not isinstance(plain, str) else []
