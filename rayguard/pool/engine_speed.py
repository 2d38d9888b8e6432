"""How fast each engine generates, told from what arrives: which of them is slow, for the load it has.

Pure. Compared per token and per sequence, so that an engine with many requests or long answers does not look
slow.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field

SLOW = 2.0  # this many times the median's seconds a token is slow
_WEIGHT = 0.2  # of the newest observation
_LEAST_S = 0.25
_LEAST_TOKENS = 32


@dataclass(slots=True)
class EngineSpeed:
    """Seconds a token takes one sequence, engine by engine."""

    s_per_token: dict[str, float] = field(default_factory=dict)
    _since: dict[str, tuple[float, int, float]] = field(default_factory=dict)

    def see(self, name: str, at_s: float, tokens: int, running: int) -> None:
        """Take in that ``name`` had generated ``tokens`` by ``at_s``, with ``running`` requests now."""
        before = self._since.get(name)
        if before is None or tokens < before[1] or not running:
            self._since[name] = (at_s, tokens, float(running))
            return
        began, count, load = before
        spent, made = at_s - began, tokens - count
        if spent < _LEAST_S or made < _LEAST_TOKENS:
            return
        seen = spent * (load + running) / 2 / made
        known = self.s_per_token.get(name)
        self.s_per_token[name] = seen if known is None else known + _WEIGHT * (seen - known)
        self._since[name] = (at_s, tokens, float(running))

    def forget(self, name: str) -> None:
        """Begin anew for ``name``: another process, or it stood still."""
        self._since.pop(name, None)
        self.s_per_token.pop(name, None)

    def slowness(self) -> dict[str, float]:
        """Return seconds a token by engine, against the median of all: 1 is as fast as the others."""
        if len(self.s_per_token) < 2:  # noqa: PLR2004 - nothing to compare with
            return dict.fromkeys(self.s_per_token, 1.0)
        median = statistics.median(self.s_per_token.values())
        return {name: pace / median if median else 1.0 for name, pace in self.s_per_token.items()}
