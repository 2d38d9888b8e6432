"""What a cluster says of a pool's actors, carried out: a process is gone, a node will be taken away.

How it is learned is ``gcs``. Nothing depends on it: an actor that is gone is also found by its silence.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from rayguard.faults.diagnosis import Kind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rayguard.actors.pool.core import PoolCore

_log = logging.getLogger("rayguard")
_MARGIN_S = 5.0  # for requests to move, and for clocks that disagree
_MARGIN_RATIO = 0.2  # of a notice that is short


def drain_s(deadline_ms: int, now_s: float, limit_s: float) -> float:
    """Return for how long an actor may go on whose node goes at ``deadline_ms``, 0 for no said time."""
    if not deadline_ms:
        return limit_s
    left_s = deadline_ms / 1000 - now_s
    return max(0.0, min(limit_s, left_s - min(_MARGIN_S, _MARGIN_RATIO * left_s)))


class Notices:
    """Passes what is said on to the actors that are meant. All on the pool's loop."""

    def __init__(self, core: PoolCore, limit_s: float) -> None:
        self._core = core
        self._limit_s = limit_s
        self._leaving: set[str] = set()

    def beyond(self, node_id: str) -> bool:
        """Say whether an actor is on another node."""
        return bool(self.elsewhere(node_id))

    def elsewhere(self, node_id: str) -> list[tuple[str, int]]:
        """Return the actor and the process of each life on another node that was met and is not over."""
        hellos = [connection.hello for connection in self._core.connections.values()]
        return [(h.actor_id, h.pid) for h in hellos if h is not None and h.node_id not in {"", node_id}]

    def died(self, actor_id: str, pid: int, why: str, *, innocent: bool) -> None:
        """End the life of an actor that had this process. ``innocent``: what ran there did not do it."""
        for connection in self._core.connections.values():
            hello = connection.hello
            if hello is not None and hello.actor_id == actor_id and hello.pid == pid:
                connection.killed = connection.killed or innocent
                connection.over(why, hello.session, Kind.NODE_DIED if innocent else Kind.ACTOR_DIED)

    def draining(self, deadlines: Mapping[str, int], now_s: float) -> None:
        """Move actors off nodes that will be taken away (node id -> wall clock in ms)."""
        for name, connection in list(self._core.connections.items()):
            node_id = "" if connection.hello is None else connection.hello.node_id
            if node_id in deadlines and name not in self._leaving and name not in self._core.draining:
                left_s = drain_s(deadlines[node_id], now_s, self._limit_s)
                _log.warning("rayguard: the node of %s will go; it is drained for %.0f s", name, left_s)
                self._leaving.add(name)
                self._core.spawn(self._move(name, left_s))

    async def _move(self, name: str, left_s: float) -> None:
        """Hire another one, let both work until that one can, and then let this one finish and go."""
        core, until = self._core, time.monotonic() + left_s
        other = core.crew.succeed(name)

        def settled() -> bool:
            slot = core.book.slots.get(other)
            return (slot is not None and slot.open) or other not in core.connections

        try:
            await core.wait_until(settled, time.monotonic() + left_s / 2)
            await core.crew.dismiss(name, max(0.0, until - time.monotonic()))
        finally:
            self._leaving.discard(name)
