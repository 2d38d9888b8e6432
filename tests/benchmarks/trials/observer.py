"""Watches a pool from inside: who was sent what and when, what came back, and when an actor was missed.

Notes only; the pool does what it would do anyway. What the notes mean is ``score``.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rayguard.pool.actors.messages import Finished, Progressed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """A request on its way to an actor, and what the pool held to be the current weights."""

    at: float
    id: str
    engine: str
    version: str
    known: int  # tokens that the pool had of it


@dataclass(slots=True)
class Notes:
    """Of one trial. All times monotonic."""

    sent: list[Sent] = field(default_factory=list)
    news: list[tuple[float, str, int]] = field(default_factory=list)  # at, id, tokens of it that are known
    delivered: list[tuple[float, str]] = field(default_factory=list)
    left: list[tuple[float, str, str]] = field(default_factory=list)  # at, engine, why
    pushes: list[tuple[float, str]] = field(default_factory=list)  # begun: at, engine

    def answered(self, at: float) -> set[str]:
        """Return the ids that were delivered until ``at``."""
        return {name for when, name in self.delivered if when <= at}

    def running(self, at: float, engine: str) -> set[str]:
        """Return the ids that ``engine`` had at ``at``, from the last time that they were sent."""
        last = {one.id: one.engine for one in self.sent if one.at <= at}
        return {name for name, where in last.items() if where == engine} - self.answered(at)


class Observer:
    """Takes notes of one pool; ``fresh`` begins new ones."""

    def __init__(self, pool: Any) -> None:
        self.notes = Notes()
        self._core = core = pool._core
        pool._background.call(lambda: self._install(core))

    def fresh(self) -> Notes:
        """Begin new notes and return them."""
        self.notes = Notes()
        return self.notes

    def _install(self, core: Any) -> None:
        self._before(core, "left", self._left)
        self._before(core, "heard", self._heard)
        self._before(core.tickets, "deliver", self._delivered)
        for connection in core.connections.values():
            self._before(connection, "send", lambda orders, c=connection: self._sent(c.name, orders))
            self._before(
                connection.actor, "update_weights", lambda *_, c=connection, **__: self._pushed(c.name)
            )

    @staticmethod
    def _before(owner: Any, name: str, note: Callable[..., None]) -> None:
        real = getattr(owner, name)

        def noted(*args: Any, **kwargs: Any) -> Any:
            note(*args, **kwargs)
            return real(*args, **kwargs)

        setattr(owner, name, noted)

    def _left(self, name: str, why: str, *, blame: bool) -> None:
        self.notes.left.append((time.monotonic(), name, why))

    def _heard(self, name: str, events: Sequence[Any], report: Any) -> None:
        now = time.monotonic()
        for event in events:
            if isinstance(event, Progressed):
                self.notes.news.append((now, event.id, event.start + len(event.more)))
            elif isinstance(event, Finished):
                self.notes.news.append((now, event.id, len(event.sample.generated)))

    def _delivered(self, name: str, entry: Any, sample: Any) -> None:
        if entry.request.id in self._core.tickets.waiting:
            self.notes.delivered.append((time.monotonic(), entry.request.id))

    def _sent(self, name: str, orders: Sequence[Any]) -> None:
        now, version = time.monotonic(), self._core.versions.current
        for order in orders:
            known = 0 if order.prior is None else len(order.prior)
            one = Sent(at=now, id=order.request.id, engine=name, version=version, known=known)
            self.notes.sent.append(one)

    def _pushed(self, name: str) -> None:
        self.notes.pushes.append((time.monotonic(), name))
