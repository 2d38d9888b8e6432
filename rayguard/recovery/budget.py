"""How many restarts are allowed before something harsher: Erlang/OTP's intensity and period."""

from __future__ import annotations

from dataclasses import dataclass

from rayguard.errors import ConfigError
from rayguard.options import explained


@explained
@dataclass(frozen=True, slots=True, kw_only=True)
class RestartBudget:
    """At most ``max_restarts`` within any ``within_s`` seconds.

    Source: https://www.erlang.org/doc/system/sup_princ (maximum restart intensity).
    """

    max_restarts: int
    within_s: float

    def __post_init__(self) -> None:
        """Refuse a budget that means nothing."""
        if self.max_restarts < 0:
            raise ConfigError(f"RestartBudget.max_restarts must be 0 or more, got {self.max_restarts}")
        if not self.within_s > 0:
            raise ConfigError(f"RestartBudget.within_s must be more than 0 seconds, got {self.within_s}")

    def counts(self, at: float, now: float) -> bool:
        """Say whether a restart at ``at`` (wall-clock seconds) still counts at ``now``."""
        return now - at < self.within_s

    def recent(self, restarts: tuple[float, ...], now: float) -> tuple[float, ...]:
        """Return the restarts (wall-clock seconds) that still count at ``now``."""
        return tuple(at for at in restarts if self.counts(at, now))

    def allows(self, restarts: tuple[float, ...], now: float) -> bool:
        """Say whether one more restart fits."""
        return len(self.recent(restarts, now)) < self.max_restarts
