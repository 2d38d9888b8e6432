"""Whether the engines of a server stand still although somebody waits for them, from what it counts. Pure.

What moves must come from the engine itself: a client that gives up and asks again moves the counters of the
front, for ever. An engine without a running request may stand still as long as it likes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rayguard.runner.serving.found import SILENT, UNANSWERED, NotServing

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rayguard.runner.serving.patience import ServingPatience


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineCounters:
    """What one engine counts. ``others``: what moves with each of its steps, whatever it is."""

    running: float
    tokens: float
    others: tuple[float, ...] = ()
    asleep: bool = False


@dataclass(slots=True)
class _Engine:
    last: EngineCounters
    still_s: float = 0.0
    longest_s: float = 0.0  # after which it went on


class EngineSilence:
    """Since when each engine of one life of a server stands still, and since when the server says nothing."""

    def __init__(self, patience: ServingPatience) -> None:
        self._patience = patience
        self._engines: dict[str, _Engine] = {}
        self._at: float | None = None
        self._unanswered_s = 0.0
        self._longest_unanswered_s = 0.0

    def answered(
        self, counters: Mapping[str, EngineCounters], now: float, *, waited_for: bool
    ) -> NotServing | None:
        """Take in what it counts; return what stands still for too long.

        Args:
            counters: By the engine's name.
            now: In seconds of a clock that never goes back.
            waited_for: Whether any client is connected: what nobody waits for is not judged.
        """
        spent_s = self._spent_s(now)
        self._longest_unanswered_s = max(self._longest_unanswered_s, self._unanswered_s)
        self._unanswered_s = 0.0
        self._engines = {name: one for name, one in self._engines.items() if name in counters}
        for name, now_counted in counters.items():
            engine = self._engines.setdefault(name, _Engine(now_counted))
            self._take_in(engine, now_counted, spent_s, waited_for=waited_for)
            limit_s = self._limit_s(engine)
            if engine.still_s >= limit_s:
                said = (
                    f"{now_counted.running:g} requests run, and nothing moved for {engine.still_s:.0f} s at "
                    f"{now_counted.tokens:g} tokens"
                )
                return NotServing(
                    SILENT,
                    f"engine {name} of the server stands still: {said} (limit {limit_s:.0f} s)",
                    (said,),
                )
        return None

    def unanswered(self, now: float) -> NotServing | None:
        """Take in that it does not tell, and did before; return whether that is for too long."""
        self._unanswered_s += self._spent_s(now)
        patience = self._patience
        limit_s = max(patience.unanswered_s, patience.times * self._longest_unanswered_s)
        if not self._engines or self._unanswered_s < limit_s:
            return None
        said = f"/metrics, which it had answered, is not answered for {self._unanswered_s:.0f} s"
        return NotServing(
            UNANSWERED, f"the server lives and answers nobody: {said} (limit {limit_s:.0f} s)", (said,)
        )

    def forgiven(self) -> None:
        """Begin anew: it stands still because it was told to."""
        for engine in self._engines.values():
            engine.still_s = 0.0

    def _spent_s(self, now: float) -> float:
        before, self._at = self._at, now
        return 0.0 if before is None else min(now - before, self._patience.most_step_s)

    @staticmethod
    def _take_in(engine: _Engine, counters: EngineCounters, spent_s: float, *, waited_for: bool) -> None:
        if counters != engine.last:
            engine.longest_s = max(engine.longest_s, engine.still_s)
            engine.last, engine.still_s = counters, 0.0
        elif counters.running > 0 and waited_for and not counters.asleep:
            engine.still_s += spent_s
        else:
            engine.still_s = 0.0

    def _limit_s(self, engine: _Engine) -> float:
        patience = self._patience
        least_s = patience.silent_s if engine.last.tokens > 0 else patience.first_s
        return max(least_s, patience.times * engine.longest_s)
