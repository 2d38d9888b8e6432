"""When there were too many crashes: of one actor for one cause (a loop), or of a whole job.

Both are a ``RestartBudget`` and the ``Crashes`` that count against it. Who may be stopped, and stopping it,
is ``rayguard.cluster.supervisor.loop``. A guarded actor bounds its own restarts too
(``GuardPolicy.process_budget``); this is for those that nobody bounds.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from rayguard.recovery.budget import RestartBudget

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartPolicy:
    """Within ``within_s`` seconds ``max_restarts``, or ``per_actor`` for each living actor if that is more.

    ``stop``: an actor that restarts when they are spent is ended for good, where rayguard restores it and so
    made it restart; where its user asked Ray for restarts, and without ``stop``, it is only told.

    Raises:
        ConfigError: A number means nothing.
    """

    max_restarts: int
    within_s: float
    per_actor: float = 0.0
    stop: bool = False

    def __post_init__(self) -> None:
        """Refuse numbers that make no budget."""
        self.for_actors(0)

    def for_actors(self, actors: int) -> RestartBudget:
        """Return the budget that so many actors have together."""
        allowed = max(self.max_restarts, round(self.per_actor * actors))
        return RestartBudget(max_restarts=allowed, within_s=self.within_s)


@dataclass(frozen=True, slots=True)
class Crash:
    """An end that nobody wished, before a restart: when (wall clock, seconds), and how Ray calls it."""

    at: float
    exit: str = ""  # of Ray's WorkerExitType; empty when it is not known


class Crashes:
    """The crashes that still count, oldest first; the newest ``most`` of them, where that is given.

    One more costs the same however many there are. Invariant: they are sorted by time.
    """

    def __init__(self, crashes: Iterable[Crash] = (), *, most: int | None = None) -> None:
        self._crashes = deque(crashes, maxlen=most)

    def __iter__(self) -> Iterator[Crash]:
        return iter(self._crashes)

    def __len__(self) -> int:
        return len(self._crashes)

    @property
    def last_at(self) -> float:
        """Return when the newest one was."""
        return self._crashes[-1].at if self._crashes else float("-inf")

    def add(self, crash: Crash) -> None:
        """Count one more."""
        self._crashes.append(Crash(max(crash.at, self.last_at), crash.exit))

    def left(self, budget: RestartBudget, now: float) -> float:
        """Return the share of the budget that is left at ``now``, from 0 to 1; forget the old ones."""
        while self._crashes and not budget.counts(self._crashes[0].at, now):
            self._crashes.popleft()
        return max(0.0, 1.0 - len(self._crashes) / budget.max_restarts)

    def are_loop(self, budget: RestartBudget) -> bool:
        """Say whether the newest ones spent the budget for one cause; one that nobody knows fits any."""
        newest = islice(reversed(self._crashes), budget.max_restarts)
        alike = len({one.exit for one in newest if one.exit}) <= 1
        return alike and self.left(budget, self.last_at) <= 0
