"""Ray's own word on actors and nodes, as soon as it has it: by subscription, 12 ms after a death.

Uses Ray's private interfaces. Without them (another Ray, a control process that is down) a pool learns of a
death on another node by its next call, a second or two later, and of a node that will go not at all.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from rayguard.actors.gcs_news import CALL_S, all_at_once, kept_up, news

if TYPE_CHECKING:
    from rayguard.actors.pool.notice import Notices

_LOOK_S = 1.0
_FIRST_S = 0.25


async def listen(address: str, node_id: str, notices: Notices) -> None:
    """Tell ``notices`` what the control process at ``address`` says, until cancelled.

    Begins when an actor is on another node than ``node_id``: here the kernel tells of deaths, and the pool
    goes with its node. (gRPC, once it runs, writes a line to stderr at each fork of its process, unless
    GRPC_ENABLE_FORK_SUPPORT=0 was set before Ray was imported.)
    """
    while not notices.beyond(node_id):  # noqa: ASYNC110 - nothing tells of it, and nothing is in a hurry
        await asyncio.sleep(_FIRST_S)
    await kept_up(
        lambda: _Line(address, notices).run(), "Ray's word on actors is not heard, their silence will be"
    )


class _Line:
    """One connection to the control process."""

    def __init__(self, address: str, notices: Notices) -> None:
        from ray._private import gcs_pubsub, gcs_utils  # noqa: PLC0415 - only where Ray runs
        from ray.core.generated import gcs_pb2, gcs_service_pb2, gcs_service_pb2_grpc  # noqa: PLC0415

        self._notices = notices
        self._channel = gcs_utils.create_gcs_channel(address, aio=True)
        self._subscriber = gcs_pubsub.GcsAioActorSubscriber(channel=self._channel)
        self._nodes = gcs_service_pb2_grpc.NodeResourceInfoGcsServiceStub(self._channel)
        self._ask = gcs_service_pb2.GetDrainingNodesRequest
        states = gcs_pb2.ActorTableData.ActorState
        self._gone = {states.Value("RESTARTING"), states.Value("DEAD")}
        self._noticed = asyncio.Event()

    async def run(self) -> None:
        """Listen until something fails."""
        try:
            await all_at_once(self._actors(), self._draining())
        finally:
            await self._channel.close()

    async def _actors(self) -> None:
        async for actor_id, row in news(self._subscriber):
            self._take(actor_id, row)

    def _take(self, actor_id: str, row: Any) -> None:
        if row.state in self._gone:  # ``pid`` is still that of the life that ended
            innocent = bool(row.preempted) or _with_its_node(row)
            why = f"Ray says that its process {row.pid} is gone" + (", with its node" if innocent else "")
            self._notices.died(actor_id, row.pid, why, innocent=innocent)
        elif row.preempted:
            self._noticed.set()

    async def _draining(self) -> None:
        """Ask each second, and at once when an actor is told of it."""
        while True:
            self._noticed.clear()
            said = await self._nodes.GetDrainingNodes(self._ask(), timeout=CALL_S)
            nodes = {node.node_id.hex(): node.draining_deadline_timestamp_ms for node in said.draining_nodes}
            if nodes:
                self._notices.draining(nodes, time.time())
            waiting = asyncio.ensure_future(self._noticed.wait())
            try:
                await asyncio.wait({waiting}, timeout=_LOOK_S)
            finally:
                waiting.cancel()


def _with_its_node(row: Any) -> bool:
    context = row.death_cause.actor_died_error_context
    return bool(context.HasField("node_death_info"))
