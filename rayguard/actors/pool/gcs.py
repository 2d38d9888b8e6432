"""Ray's own word on actors and nodes: a death 20 to 50 ms after it, a node that will go within a second.

Ray's core worker hears of each actor that this process calls, 8 ms after a death; what it knows is read from
it (0.3 us) and no connection is opened. One of Python's gRPC would hurt: with its fork handlers, one in 25
processes that the user starts with ``preexec_fn`` or ``os.fork`` would crash before its program begins.

Uses Ray's private interfaces. Without them (another Ray, a control process that is down) a pool learns of a
death on another node by its next call, a second or two later, and of a node that will go not at all.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from rayguard.actors.gcs_news import CALL_S, all_at_once, kept_up
from rayguard.actors.incarnation import actor_row

if TYPE_CHECKING:
    from rayguard.actors.pool.notice import Notices

_LOOK_S = 1.0
_FIRST_S = 0.25
_GLANCE_S = 0.02


async def listen(node_id: str, notices: Notices) -> None:
    """Tell ``notices`` what Ray says of actors on other nodes than ``node_id``, until cancelled.

    Begins when there is one: here the kernel tells of deaths, and the pool goes with its node.
    """
    while not notices.beyond(node_id):  # noqa: ASYNC110 - nothing tells of it, and nothing is in a hurry
        await asyncio.sleep(_FIRST_S)
    await kept_up(
        lambda: _Word(node_id, notices).run(), "Ray's word on actors is not heard, their silence will be"
    )


class _Word:
    """What this process's core worker and the control process say."""

    def __init__(self, node_id: str, notices: Notices) -> None:
        from ray import ActorID  # noqa: PLC0415 - only where Ray runs
        from ray._private.worker import global_worker  # noqa: PLC0415
        from ray.core.generated import gcs_pb2  # noqa: PLC0415

        self._node_id, self._notices = node_id, notices
        self._actor_id = ActorID.from_hex
        self._state_of = global_worker.core_worker.get_local_actor_state
        self._going = global_worker.gcs_client.get_draining_nodes
        states = gcs_pb2.ActorTableData.ActorState
        self._gone = {states.Value("RESTARTING"), states.Value("DEAD")}
        self._told: dict[str, int] = {}  # the process of each actor whose end was told last

    async def run(self) -> None:
        """Listen until something fails."""
        await all_at_once(self._actors(), self._draining())

    async def _actors(self) -> None:
        while True:
            # Whom we have heard from was alive for Ray as well: what says otherwise now is of that life.
            lives = self._notices.elsewhere(self._node_id)
            over = [(actor_id, pid) for actor_id, pid in lives if self._is_over(actor_id, pid)]
            await asyncio.gather(*(self._tell(actor_id, pid) for actor_id, pid in over))
            await asyncio.sleep(_GLANCE_S)

    def _is_over(self, actor_id: str, pid: int) -> bool:
        return self._told.get(actor_id) != pid and self._state_of(self._actor_id(actor_id)) in self._gone

    async def _tell(self, actor_id: str, pid: int) -> None:
        self._told[actor_id] = pid
        row = await asyncio.wait_for(asyncio.to_thread(actor_row, self._actor_id(actor_id)), CALL_S)
        innocent = (
            row is not None and row.state in self._gone and (bool(row.preempted) or _with_its_node(row))
        )
        why = f"Ray says that its process {pid} is gone" + (", with its node" if innocent else "")
        self._notices.died(actor_id, pid, why, innocent=innocent)

    async def _draining(self) -> None:
        while True:
            deadlines_ms = await asyncio.to_thread(self._going, CALL_S)
            if deadlines_ms:
                self._notices.draining(deadlines_ms, time.time())
            await asyncio.sleep(_LOOK_S)


def _with_its_node(row: Any) -> bool:
    context = row.death_cause.actor_died_error_context
    return bool(context.HasField("node_death_info"))
