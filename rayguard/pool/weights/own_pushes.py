"""Engines of a pool into which the user pushes by code of his own, and those that lack such a push.

What an engine does that lacks one is ``rayguard.engine.weights.changes``: it answers nobody. Here its
requests go to others, and an actor that is hired anew is told that a push is expected: it cannot know.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rayguard.harmless import harmless

if TYPE_CHECKING:
    from collections.abc import Callable

    from rayguard.pool.actors.messages import ActorReport, Hello
    from rayguard.pool.fleet import Fleet
    from rayguard.pool.ports import PoolPort


@dataclass(slots=True)
class OwnPushes:
    """Who has the user's own weights, and who lacks them."""

    pool: PoolPort
    fleet: Fleet
    admit: Callable[[str], None]  # opens or closes an engine
    _has: set[str] = field(default_factory=set)
    _lacks: set[str] = field(default_factory=set)

    def may_serve(self, name: str) -> bool:
        """Whether requests go to ``name``: where all lack weights, they shall hear so."""
        return name not in self._lacks or all(other in self._lacks for other in self._others(name))

    def joined(self, name: str, hello: Hello) -> None:
        """A life of an actor begins."""
        others = self._others(name)
        expected = bool(self._has) and all(other in self._has for other in others)
        self._has.discard(name)
        self._enter(name, lacks=bool(hello.lacks) or (expected and not hello.own_push))
        if expected and not hello.own_push:
            self.pool.spawn(self._expect(name))

    def heard(self, name: str, report: ActorReport) -> None:
        """An engine tells what it has."""
        if report.own_push:
            self._has.add(name)
        if report.lacks or report.own_push:
            self._enter(name, lacks=bool(report.lacks))

    def _enter(self, name: str, *, lacks: bool) -> None:
        if lacks is (name in self._lacks):
            return
        (self._lacks.add if lacks else self._lacks.discard)(name)
        for other in self.fleet.connections:
            self.admit(other)

    def _others(self, name: str) -> list[str]:
        return [c.name for c in self.fleet.connections.values() if c.session and c.name != name]

    async def _expect(self, name: str) -> None:
        connection = self.fleet.connections.get(name)
        if connection is not None:
            with harmless("pool"):
                await connection.actor.expect_push(connection.session)
