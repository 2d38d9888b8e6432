"""How many restarts a whole job may have: a budget across all of its actors, and what is left of it."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from rayguard.errors import ConfigError
from rayguard.recovery.budget import RestartBudget

if TYPE_CHECKING:
    from collections.abc import Iterable


class OnSpent(str, Enum):
    """What is done when the budget is spent."""

    TELL = "tell"  # an incident with advice, no more
    STOP = "stop"  # besides, an actor that restarts while it is spent is stopped, if it is under rayguard


@dataclass(frozen=True, slots=True, kw_only=True)
class JobBudgetPolicy:
    """Within ``within_s`` seconds ``per_actor`` restarts for each living actor, but at least ``at_least``.

    Restarts that were wished for, and those of a node that went, do not count.

    Raises:
        ConfigError: A number means nothing.
    """

    at_least: int = 20
    per_actor: float = 1.0
    within_s: float = 3_600.0
    on_spent: OnSpent = OnSpent.TELL

    def __post_init__(self) -> None:
        """Refuse a budget that is spent before it begins."""
        if self.at_least < 1 or self.per_actor < 0:
            raise ConfigError(
                f"budget needs at_least >= 1 and per_actor >= 0, got {self.at_least} and {self.per_actor}"
            )
        self.for_actors(0)

    def for_actors(self, actors: int) -> RestartBudget:
        """Return the budget of a job that has so many actors."""
        allowed = max(self.at_least, round(self.per_actor * actors))
        return RestartBudget(max_restarts=allowed, within_s=self.within_s)


class Spending:
    """The restarts that still count, oldest first. One more costs the same however many there are."""

    def __init__(self, policy: JobBudgetPolicy, times: Iterable[float] = ()) -> None:
        self._policy = policy
        self.times = deque(sorted(times))

    def spend(self, at: float) -> None:
        """Count one restart. Invariant: ``times`` is sorted."""
        self.times.append(max(at, self.times[-1] if self.times else at))

    def left(self, actors: int, now: float) -> float:
        """Return the share of the budget that is left, from 0 to 1."""
        budget = self._policy.for_actors(actors)
        while self.times and now - self.times[0] >= budget.within_s:
            self.times.popleft()
        return max(0.0, 1.0 - len(self.times) / budget.max_restarts)
