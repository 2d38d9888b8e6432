"""Calls to an engine that are not answered: told, with the line where the engine stands.

No hang to be ended: a call may wait for a trainer's collective for as long as that pleases. But many have no
deadline (``collective_rpc`` has none unless it is given one), and vLLM itself would never say a word.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rayguard.engine.hangs.watchdog import PACE_FACTOR

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

TOLD_AFTER_S = 10.0
_AGAIN_FACTOR = 10  # told at 10 s, then at 100 s, at 1,000 s


class UnansweredCalls:
    """Knows since when each call has been inside one engine, and how long those before it took."""

    def __init__(self) -> None:
        self._inside: dict[int, tuple[str, float]] = {}  # number -> name, first seen (monotonic)
        self._told_s: dict[int, float] = {}
        self._longest_s: dict[str, float] = {}

    def due(self, inside: Mapping[int, str], now: float) -> Iterator[tuple[str, float]]:
        """Yield name and seconds of the calls that are to be told now; ``inside`` are those of this look."""
        for number in [number for number in self._inside if number not in inside]:
            name, since = self._inside.pop(number)
            self._longest_s[name] = max(now - since, self._longest_s.get(name, 0.0))
            self._told_s.pop(number, None)
        for number, name in inside.items():
            _, since = self._inside.setdefault(number, (name, now))
            usual_s = PACE_FACTOR * self._longest_s.get(name, 0.0)
            limit_s = max(TOLD_AFTER_S, usual_s, _AGAIN_FACTOR * self._told_s.get(number, 0.0))
            if now - since >= limit_s:
                self._told_s[number] = now - since
                yield name, now - since
