"""Ray's own word on actors and nodes: a death 20 to 50 ms after it, a node that will go within a second.

Ray's core worker hears of each actor that this process calls, 8 ms after a death; what it knows is read from
it (0.3 us) and no connection is opened. One of Python's gRPC would hurt: with its fork handlers, one in 25
processes that the user starts with ``preexec_fn`` or ``os.fork`` would crash before its program begins.

Without that word (another Ray, a control process that is down) a pool learns of a death on another node by
its next call, a second or two later, and of a node that will go not at all.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

from rayguard.faults.diagnosis import Kind
from rayguard.ray_internals import gcs_subscription
from rayguard.ray_internals.gcs_tables import actor_row

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rayguard.pool.core import PoolCore

_log = logging.getLogger("rayguard")
_LOOK_S = 1.0
_FIRST_S = 0.25
_GLANCE_S = 0.02
_MARGIN_S = 5.0  # for requests to move, and for clocks that disagree
_MARGIN_RATIO = 0.2  # of a notice that is short


async def listen(node_id: str, notices: Notices) -> None:
    """Tell ``notices`` what Ray says of actors on other nodes than ``node_id``, until cancelled.

    Begins when there is one: here the kernel tells of deaths, and the pool goes with its node.
    """
    while not notices.beyond(node_id):  # noqa: ASYNC110 - nothing tells of it, and nothing is in a hurry
        await asyncio.sleep(_FIRST_S)
    await gcs_subscription.kept_up(
        lambda: _Word(node_id, notices).run(), "Ray's word on actors is not heard, their silence will be"
    )


class _Word:
    """What this process's core worker and the control process say."""

    def __init__(self, node_id: str, notices: Notices) -> None:
        self._node_id, self._notices = node_id, notices
        self._states = gcs_subscription.LocalActorStates()
        self._told: dict[str, int] = {}  # the process of each actor whose end was told last

    async def run(self) -> None:
        """Listen until something fails."""
        await gcs_subscription.all_at_once(self._actors(), self._draining())

    async def _actors(self) -> None:
        while True:
            # Whom we have heard from was alive for Ray as well: what says otherwise now is of that life.
            lives = self._notices.elsewhere(self._node_id)
            over = [(actor_id, pid) for actor_id, pid in lives if self._is_over(actor_id, pid)]
            await asyncio.gather(*(self._tell(actor_id, pid) for actor_id, pid in over))
            await asyncio.sleep(_GLANCE_S)

    def _is_over(self, actor_id: str, pid: int) -> bool:
        return self._told.get(actor_id) != pid and self._states.is_over(actor_id)

    async def _tell(self, actor_id: str, pid: int) -> None:
        self._told[actor_id] = pid
        row = await asyncio.wait_for(asyncio.to_thread(actor_row, actor_id), gcs_subscription.CALL_S)
        over = row is not None and row.state in gcs_subscription.PROCESS_OVER
        innocent = row is not None and over and (row.preempted or row.died_with_node)
        why = f"Ray says that its process {pid} is gone" + (", with its node" if innocent else "")
        self._notices.died(actor_id, pid, why, innocent=innocent)

    async def _draining(self) -> None:
        while True:
            deadlines_ms = await asyncio.to_thread(self._states.draining)
            if deadlines_ms:
                self._notices.draining(deadlines_ms, time.time())
            await asyncio.sleep(_LOOK_S)


def drain_s(deadline_ms: int, now_s: float, limit_s: float) -> float:
    """Return for how long an actor may go on whose node goes at ``deadline_ms``, 0 for no said time."""
    if not deadline_ms:
        return limit_s
    left_s = deadline_ms / 1000 - now_s
    return max(0.0, min(limit_s, left_s - min(_MARGIN_S, _MARGIN_RATIO * left_s)))


class Notices:
    """Carries out what Ray says of a pool's actors. All on the pool's loop."""

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
        other = core.fleet.succeed(name)

        def settled() -> bool:
            slot = core.book.slots.get(other)
            return (slot is not None and slot.open) or other not in core.connections

        try:
            await core.wait_until(settled, time.monotonic() + left_s / 2)
            await core.fleet.dismiss(name, max(0.0, until - time.monotonic()))
        finally:
            self._leaving.discard(name)
