"""Ray's control process as the supervisor of a job hears it: rows become events, by push and by slow reading.

All private interfaces of Ray that the supervisor uses are in this file. What follows from an event is
``rayguard.cluster.supervisor_state``.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Protocol

from rayguard.actors.gcs_news import AGAIN_S, CALL_S, all_at_once, kept_up, news
from rayguard.cluster.supervisor_events import (
    ActorSeen,
    ActorState,
    DeathTold,
    Event,
    JobOver,
    NodesDraining,
    NodeSeen,
    TableRead,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

OURS = "_rayguard"  # the namespace of our own actors
LOOK_S = 1.0  # between two looks for nodes that are told to go
READ_S = 30.0  # between two readings of all tables: a push that was lost is made up for
_NOBODY = "ff"  # what Ray has for "no node" and "no worker", over and over
_LOST = "Ray's word on the job's actors is not heard, its tables will be read again"
# They ended because somebody wanted it so, or because their owner ended.
_WISHED = frozenset({"RAY_KILL", "OUT_OF_SCOPE", "REF_DELETED", "OWNER_DIED"})


class Line(Protocol):
    """One connection to the control process (``GcsLine``; scripted in tests)."""

    async def subscribe(self) -> None:
        """Begin to hear; what is published from now on is kept until it is asked for."""

    def pushes(self) -> tuple[AsyncIterator[Event | str], ...]:
        """Return what is published: events, or the id of a node on which a process ended."""

    async def tables(self) -> list[Event]:
        """Read all tables: nodes first, then actors, and the job."""

    async def draining(self) -> NodesDraining:
        """Read which nodes are told to go."""

    async def close(self) -> None:
        """Hang up."""


async def listen(
    connect: Callable[[], Line],
    take: Callable[[Event], None],
    wake: Callable[[str], None],
    *,
    look_s: float = LOOK_S,
    read_s: float = READ_S,
    again_s: tuple[float, ...] = AGAIN_S,
) -> None:
    """Give every event to ``take``, until cancelled; ``wake(node)`` when a process ended there.

    After each (new) subscription all tables are read, so that what was said meanwhile is not lost.
    """

    async def once() -> None:
        line = connect()
        try:
            await line.subscribe()
            for event in await line.tables():
                take(event)
            pushes = (_pushed(push, take, wake) for push in line.pushes())
            await all_at_once(*pushes, _looking(line, take, look_s), _reading(line, take, read_s))
        finally:
            await line.close()

    await kept_up(once, _LOST, again_s)


async def _pushed(
    push: AsyncIterator[Event | str], take: Callable[[Event], None], wake: Callable[[str], None]
) -> None:
    async for event in push:
        if isinstance(event, str):
            wake(event)
        else:
            take(event)


async def _looking(line: Line, take: Callable[[Event], None], look_s: float) -> None:
    known: dict[str, float] = {}
    while True:
        said = await line.draining()
        if said.deadlines != known:
            known = dict(said.deadlines)
            take(said)
        await asyncio.sleep(look_s)


async def _reading(line: Line, take: Callable[[Event], None], read_s: float) -> None:
    while True:
        await asyncio.sleep(read_s)
        for event in await line.tables():
            take(event)


class GcsLine:
    """The real ``Line``, of one job. Needs a Ray whose private interfaces are known (2.40 to 2.60)."""

    def __init__(self, address: str, job_id: str) -> None:
        from ray._private import gcs_pubsub, gcs_utils  # noqa: PLC0415 - only where Ray runs
        from ray.core.generated import gcs_service_pb2, gcs_service_pb2_grpc  # noqa: PLC0415

        self._job = bytes.fromhex(job_id)
        self._ask = gcs_service_pb2
        self._channel = gcs_utils.create_gcs_channel(address, aio=True)
        self._subscribers = (
            gcs_pubsub.GcsAioActorSubscriber(channel=self._channel),
            gcs_pubsub.GcsAioNodeInfoSubscriber(channel=self._channel),
            gcs_pubsub.GcsAioWorkerDeltaSubscriber(channel=self._channel),
            gcs_pubsub.GcsAioJobSubscriber(channel=self._channel),
        )
        self._actors = gcs_service_pb2_grpc.ActorInfoGcsServiceStub(self._channel)
        self._nodes = gcs_service_pb2_grpc.NodeInfoGcsServiceStub(self._channel)
        self._resources = gcs_service_pb2_grpc.NodeResourceInfoGcsServiceStub(self._channel)
        self._workers = gcs_service_pb2_grpc.WorkerInfoGcsServiceStub(self._channel)
        self._jobs = gcs_service_pb2_grpc.JobInfoGcsServiceStub(self._channel)

    async def subscribe(self) -> None:
        """Begin to hear."""
        for subscriber in self._subscribers:
            await asyncio.wait_for(subscriber.subscribe(), CALL_S)

    def pushes(self) -> tuple[AsyncIterator[Event | str], ...]:
        """Return what is published."""
        actors, nodes, workers, jobs = (news(one, subscribed=True) for one in self._subscribers)
        return (
            (event async for key, row in actors if (event := self._actor(key, row)) is not None),
            (node_seen(key, row) async for key, row in nodes),
            (row.node_id.hex() async for _, row in workers),
            (JobOver(at=time.time()) async for key, row in jobs if row.is_dead and key == self._job.hex()),
        )

    async def tables(self) -> list[Event]:
        """Read all tables."""
        nodes = await self._nodes.GetAllNodeInfo(self._ask.GetAllNodeInfoRequest(), timeout=CALL_S)
        mine = self._ask.GetAllActorInfoRequest.Filters(job_id=self._job)
        rows = await self._actors.GetAllActorInfo(
            self._ask.GetAllActorInfoRequest(filters=mine, show_dead_jobs=True), timeout=CALL_S
        )
        job = await self._job_row()
        actors = (self._actor(row.actor_id.hex(), row) for row in rows.actor_table_data)
        return [
            *(node_seen(row.node_id.hex(), row) for row in nodes.node_info_list),
            TableRead(actors=tuple(one for one in actors if one is not None), at=time.time()),
            *([JobOver(at=time.time())] if job is not None and job.is_dead else []),
        ]

    async def began_at(self) -> float:
        """Return when the job began (wall clock, seconds); now if Ray does not know it."""
        row = await self._job_row()
        return time.time() if row is None else row.start_time / 1000

    async def draining(self) -> NodesDraining:
        """Read which nodes are told to go."""
        said = await self._resources.GetDrainingNodes(self._ask.GetDrainingNodesRequest(), timeout=CALL_S)
        nodes = {
            node.node_id.hex(): node.draining_deadline_timestamp_ms / 1000 for node in said.draining_nodes
        }
        return NodesDraining(deadlines=nodes, at=time.time())

    async def death(self, actor_id: str, worker: str) -> DeathTold:
        """Ask how a process of an actor ended; an answer without a word if Ray does not know it."""
        from ray.core.generated import common_pb2  # noqa: PLC0415 - only where Ray runs

        if not worker:
            return DeathTold(actor_id=actor_id, at=time.time())
        ask = self._ask.GetWorkerInfoRequest(worker_id=bytes.fromhex(worker))
        row = (await self._workers.GetWorkerInfo(ask, timeout=CALL_S)).worker_table_data
        if row.is_alive or not row.end_time_ms:
            return DeathTold(actor_id=actor_id, at=time.time())
        kind = common_pb2.WorkerExitType.Name(row.exit_type)
        return DeathTold(actor_id=actor_id, at=time.time(), exit=kind, detail=row.exit_detail)

    async def kill(self, actor_id: str, *, again: bool = False) -> None:
        """End an actor, for good unless ``again``, as ``ray.kill`` does, which needs a handle."""
        ask = self._ask.KillActorViaGcsRequest(
            actor_id=bytes.fromhex(actor_id), force_kill=True, no_restart=not again
        )
        await self._actors.KillActorViaGcs(ask, timeout=CALL_S)

    async def close(self) -> None:
        """Hang up."""
        await self._channel.close()

    async def _job_row(self) -> Any:
        ask = self._ask.GetAllJobInfoRequest(
            job_or_submission_id=self._job.hex(),
            skip_submission_job_info_field=True,
            skip_is_running_tasks_field=True,
        )
        said = await self._jobs.GetAllJobInfo(ask, timeout=CALL_S)
        return next((row for row in said.job_info_list if row.job_id == self._job), None)

    def _actor(self, actor_id: str, row: Any) -> ActorSeen | None:
        """Return the event of a row, None of another job's or our own actor; a pushed one names no job."""
        if not actor_id.endswith(self._job.hex()) or row.ray_namespace == OURS:
            return None
        return actor_seen(actor_id, row, time.time())


def actor_seen(actor_id: str, row: Any, at: float) -> ActorSeen:
    """Return the event of one row of the actor table, pushed or read."""
    name = type(row).ActorState.Name(row.state)
    earlier = list(
        getattr(row, "previous_incarnations", ())
    )  # only in rows that are read, and not in an old Ray
    gone = row.death_cause.actor_died_error_context
    reason = type(gone).Reason.Name(gone.reason) if hasattr(gone, "reason") else ""
    alive = name == "ALIVE"
    last = earlier[-1] if earlier else None
    return ActorSeen(
        actor_id=actor_id,
        state=ActorState(name.lower()) if name in ("ALIVE", "RESTARTING", "DEAD") else ActorState.PENDING,
        at=at,
        restarts=int(row.num_restarts),
        class_name=str(row.class_name).rpartition(".")[2],
        node=_known(row.address.node_id if alive else last.node_id if last else b""),
        worker=_known(row.address.worker_id if alive else last.worker_id if last else b""),
        previous_worker=_known(last.worker_id) if last else "",
        wished=name == "DEAD" and reason in _WISHED,
        why=str(gone.error_message),
    )


def node_seen(node: str, row: Any) -> NodeSeen:
    """Return the event of one row of the node table, pushed or read."""
    reason = type(row.death_info).Reason.Name(row.death_info.reason)
    return NodeSeen(
        node=node,
        alive=type(row).GcsNodeState.Name(row.state) == "ALIVE",
        at=time.time(),
        ended_at=getattr(row, "end_time_ms", 0) / 1000,
        address=str(row.node_manager_address),
        expected=reason in ("EXPECTED_TERMINATION", "AUTOSCALER_DRAIN_IDLE", "AUTOSCALER_DRAIN_PREEMPTED"),
        preempted=reason == "AUTOSCALER_DRAIN_PREEMPTED",
        why=str(row.death_info.reason_message),
    )


def _known(name: bytes) -> str:
    found = name.hex()
    return "" if found == _NOBODY * (len(found) // 2) else found
