"""A connection of one's own to Ray's control process, for those who hear all of it: the supervisor of a job.

Rows come out as plain values. What is made of them is ``rayguard.cluster.supervisor.gcs_events``.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from rayguard.ray_internals.capability import Capability
from rayguard.ray_internals.gcs_subscription import CALL_S, news
from rayguard.ray_internals.rows import actor_row_of, job_row_of, node_row_of, somebody, worker_row_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from rayguard.ray_internals.capability import Found
    from rayguard.ray_internals.rows import ActorRow, JobRow, NodeRow, WorkerRow

_PUBSUB, _ASK = "ray._private.gcs_pubsub", "ray.core.generated.gcs_service_pb2"
_ROWS = "ray.core.generated.gcs_pb2"


def _try_out(found: Found) -> None:
    actor_row_of(found["actor"]())
    node_row_of(found["node"]())
    job_row_of(found["job"]())
    worker_row_of(found["worker"]())
    _worker_over(found["delta"]())


_connection = Capability(
    "news of the cluster",
    "a job's supervisor hears of no death, and no crash loop is ended",
    {
        "channel": "ray._private.gcs_utils:create_gcs_channel",
        "actors": f"{_PUBSUB}:GcsAioActorSubscriber",
        "nodes": f"{_PUBSUB}:GcsAioNodeInfoSubscriber",
        "workers": f"{_PUBSUB}:GcsAioWorkerDeltaSubscriber",
        "jobs": f"{_PUBSUB}:GcsAioJobSubscriber",
        **{
            f"ask_{name.lower()}": f"{_ASK}_grpc:{name}GcsServiceStub"
            for name in ("ActorInfo", "NodeInfo", "NodeResourceInfo", "WorkerInfo", "JobInfo")
        },
        **{
            name: f"{_ASK}:{name}Request"
            for name in (
                "GetAllNodeInfo",
                "GetAllActorInfo",
                "GetDrainingNodes",
                "GetWorkerInfo",
                "KillActorViaGcs",
                "GetAllJobInfo",
            )
        },
        "actor": f"{_ROWS}:ActorTableData",
        "node": f"{_ROWS}:GcsNodeInfo",
        "job": f"{_ROWS}:JobTableData",
        "worker": f"{_ROWS}:WorkerTableData",
        "delta": f"{_ROWS}:WorkerDeltaData",
    },
    test=_try_out,
)


_ends = Capability(
    "ends of workers",
    "an agent learns of a worker's death from its process alone, which says less of the cause",
    {"subscriber": f"{_PUBSUB}:GcsAioWorkerDeltaSubscriber", "row": f"{_ROWS}:WorkerDeltaData"},
    test=lambda found: _worker_over(found["row"]()),
)


class GcsConnection:
    """One connection.

    Raises:
        CapabilityOffError: Ray has moved what it needs.
    """

    def __init__(self, address: str) -> None:
        found = _connection.found()
        self._ask = found
        self._channel = found["channel"](address, aio=True)
        self._subscribers = [
            found[kind](channel=self._channel) for kind in ("actors", "nodes", "workers", "jobs")
        ]
        self._actors = found["ask_actorinfo"](self._channel)
        self._nodes = found["ask_nodeinfo"](self._channel)
        self._resources = found["ask_noderesourceinfo"](self._channel)
        self._workers = found["ask_workerinfo"](self._channel)
        self._jobs = found["ask_jobinfo"](self._channel)

    async def subscribe(self) -> None:
        """Begin to hear; what is published from now on is kept until it is asked for."""
        for subscriber in self._subscribers:
            await asyncio.wait_for(subscriber.subscribe(), CALL_S)

    async def actors_heard(self) -> AsyncIterator[tuple[str, ActorRow]]:
        """Yield the id and the row of each actor that changes; a pushed row names no job and no id."""
        async for key, row in news(self._subscribers[0], subscribed=True):
            yield key, actor_row_of(row)

    async def nodes_heard(self) -> AsyncIterator[tuple[str, NodeRow]]:
        """Yield the id and the row of each node that changes."""
        async for key, row in news(self._subscribers[1], subscribed=True):
            yield key, node_row_of(row)

    async def workers_over(self) -> AsyncIterator[str]:
        """Yield the node of each worker that ends."""
        async for _, row in news(self._subscribers[2], subscribed=True):
            yield _worker_over(row)[0]

    async def jobs_heard(self) -> AsyncIterator[tuple[str, JobRow]]:
        """Yield the id and the row of each job that changes."""
        async for key, row in news(self._subscribers[3], subscribed=True):
            yield key, job_row_of(row)

    async def nodes(self) -> list[NodeRow]:
        """Read the table of nodes."""
        reply = await self._nodes.GetAllNodeInfo(self._ask["GetAllNodeInfo"](), timeout=CALL_S)
        return [node_row_of(row) for row in reply.node_info_list]

    async def actors(self, job_id: str) -> list[ActorRow]:
        """Read the rows of a job's actors."""
        ask = self._ask["GetAllActorInfo"]
        request = ask(filters=ask.Filters(job_id=bytes.fromhex(job_id)), show_dead_jobs=True)
        reply = await self._actors.GetAllActorInfo(request, timeout=CALL_S)
        return [actor_row_of(row) for row in reply.actor_table_data]

    async def job(self, job_id: str) -> JobRow | None:
        """Read the row of a job; None for none."""
        request = self._ask["GetAllJobInfo"](
            job_or_submission_id=job_id, skip_submission_job_info_field=True, skip_is_running_tasks_field=True
        )
        reply = await self._jobs.GetAllJobInfo(request, timeout=CALL_S)
        rows = (job_row_of(row) for row in reply.job_info_list)
        return next((row for row in rows if row.job_id == job_id), None)

    async def draining(self) -> dict[str, float]:
        """Return the nodes that are told to go, and until when (wall clock, seconds; 0: not said)."""
        reply = await self._resources.GetDrainingNodes(self._ask["GetDrainingNodes"](), timeout=CALL_S)
        return {one.node_id.hex(): one.draining_deadline_timestamp_ms / 1000 for one in reply.draining_nodes}

    async def worker(self, worker_id: str) -> WorkerRow:
        """Read the row of a worker; an empty one where there is none."""
        request = self._ask["GetWorkerInfo"](worker_id=bytes.fromhex(worker_id))
        return worker_row_of((await self._workers.GetWorkerInfo(request, timeout=CALL_S)).worker_table_data)

    async def kill_actor(self, actor_id: str, *, no_restart: bool) -> None:
        """End an actor, as ``ray.kill`` does, which needs a handle."""
        request = self._ask["KillActorViaGcs"](
            actor_id=bytes.fromhex(actor_id), force_kill=True, no_restart=no_restart
        )
        await self._actors.KillActorViaGcs(request, timeout=CALL_S)

    async def close(self) -> None:
        """Hang up."""
        await self._channel.close()


class WorkerEnds:
    """A subscription to the ends of workers alone, of all nodes: a message for each.

    Raises:
        CapabilityOffError: Ray has moved what it needs.
    """

    def __init__(self, address: str) -> None:
        self._subscriber = _ends.found()["subscriber"](address=address)

    async def heard(self) -> AsyncIterator[tuple[str, str]]:
        """Subscribe and yield the node and the id of each worker that ends."""
        async for _, row in news(self._subscriber):
            yield _worker_over(row)

    async def close(self) -> None:
        """Hang up."""
        await asyncio.wait_for(self._subscriber.close(), CALL_S)


def _worker_over(row: Any) -> tuple[str, str]:
    return somebody(row.node_id), somebody(row.worker_id)
