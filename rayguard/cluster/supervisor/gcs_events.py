"""Ray's control process as the supervisor of a job hears it: rows become events, by push and by slow reading.

How it is asked is ``rayguard.ray_internals.gcs_connection``; what follows from an event is
``rayguard.cluster.supervisor.job_machine``.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from rayguard.cluster.plugin import unmatched_paths
from rayguard.cluster.supervisor import events
from rayguard.ray_internals.gcs_connection import GcsConnection
from rayguard.ray_internals.gcs_subscription import AGAIN_S, all_at_once, kept_up

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import AsyncIterator, Callable

    from rayguard.ray_internals.rows import ActorRow, NodeRow

LOOK_S = 1.0  # between two looks for nodes that are told to go
READ_S = 30.0  # between two readings of all tables: a push that was lost is made up for
_LOST = "Ray's word on the job's actors is not heard, its tables will be read again"
# They ended because somebody wanted it so, or because their owner ended.
_WISHED = frozenset({"RAY_KILL", "OUT_OF_SCOPE", "REF_DELETED", "OWNER_DIED"})


async def listen(
    connect: Callable[[], GcsLine],
    take: Callable[[events.Event], None],
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
    push: AsyncIterator[events.Event | str], take: Callable[[events.Event], None], wake: Callable[[str], None]
) -> None:
    async for event in push:
        if isinstance(event, str):
            wake(event)
        else:
            take(event)


async def _looking(line: GcsLine, take: Callable[[events.Event], None], look_s: float) -> None:
    known: dict[str, float] = {}
    while True:
        said = await line.draining()
        if said.deadlines != known:
            known = dict(said.deadlines)
            take(said)
        await asyncio.sleep(look_s)


async def _reading(line: GcsLine, take: Callable[[events.Event], None], read_s: float) -> None:
    while True:
        await asyncio.sleep(read_s)
        for event in await line.tables():
            take(event)


class GcsLine:
    """One connection to the control process, for one job.

    Raises:
        CapabilityOffError: Ray has moved what it needs.
    """

    def __init__(self, address: str, job_id: str) -> None:
        self._job_id = job_id
        self._gcs = GcsConnection(address)

    async def subscribe(self) -> None:
        """Begin to hear; what is published from now on is kept until it is asked for."""
        await self._gcs.subscribe()

    def pushes(self) -> tuple[AsyncIterator[events.Event | str], ...]:
        """Return what is published: events, or the id of a node on which a process ended."""
        actors, nodes, jobs = self._gcs.actors_heard(), self._gcs.nodes_heard(), self._gcs.jobs_heard()
        return (
            (event async for key, row in actors if (event := self._actor(key, row)) is not None),
            (node_seen(key, row) async for key, row in nodes),
            self._gcs.workers_over(),
            (
                events.JobOver(at=time.time())
                async for key, row in jobs
                if not row.running and key == self._job_id
            ),
        )

    async def tables(self) -> list[events.Event]:
        """Read all tables: nodes first, then actors, and the job."""
        nodes, rows = await self._gcs.nodes(), await self._gcs.actors(self._job_id)
        job = await self._gcs.job(self._job_id)
        actors = (self._actor(row.actor_id, row) for row in rows)
        return [
            *(node_seen(row.node_id, row) for row in nodes),
            events.TableRead(actors=tuple(one for one in actors if one is not None), at=time.time()),
            *([events.JobOver(at=time.time())] if job is not None and not job.running else []),
        ]

    async def began_at(self) -> float:
        """Return when the job began (wall clock, seconds); now if Ray does not know it."""
        row = await self._gcs.job(self._job_id)
        return time.time() if row is None else row.began_at

    async def named_and_seen(self) -> tuple[tuple[str, ...], Counter[str]]:
        """Read which class paths the job named, and how many actors of each class it has had."""
        row = await self._gcs.job(self._job_id)
        seen = unmatched_paths.classes_of(await self._gcs.actors(self._job_id))
        return unmatched_paths.of_runtime_env("" if row is None else row.runtime_env), seen

    async def draining(self) -> events.NodesDraining:
        """Read which nodes are told to go."""
        return events.NodesDraining(deadlines=await self._gcs.draining(), at=time.time())

    async def death(self, actor_id: str, worker: str) -> events.DeathReported:
        """Ask how a process of an actor ended; an answer without a word if Ray does not know it."""
        row = await self._gcs.worker(worker) if worker else None
        if row is None or row.alive or not row.at:
            return events.DeathReported(actor_id=actor_id, at=time.time())
        return events.DeathReported(actor_id=actor_id, at=time.time(), exit=row.kind, detail=row.said)

    async def kill(self, actor_id: str, *, again: bool = False) -> None:
        """End an actor, for good unless ``again``, as ``ray.kill`` does, which needs a handle."""
        await self._gcs.kill_actor(actor_id, no_restart=not again)

    async def close(self) -> None:
        """Hang up."""
        await self._gcs.close()

    def _actor(self, actor_id: str, row: ActorRow) -> events.ActorSeen | None:
        """Return the event of a row, None of another job's or our own actor; a pushed one names no job."""
        if not actor_id.endswith(self._job_id) or row.ours:
            return None
        return actor_seen(actor_id, row, time.time())


def actor_seen(actor_id: str, row: ActorRow, at: float) -> events.ActorSeen:
    """Return the event of one row of the actor table, pushed or read."""
    alive, last = row.state == "ALIVE", row.earlier[-1] if row.earlier else None
    place = row if alive else last
    known = row.state in ("ALIVE", "RESTARTING", "DEAD")
    return events.ActorSeen(
        actor_id=actor_id,
        state=events.ActorState(row.state.lower()) if known else events.ActorState.PENDING,
        at=at,
        restarts=row.lives,
        class_name=row.class_name,
        node=place.node_id if place is not None else "",
        worker=place.worker_id if place is not None else "",
        previous_worker=last.worker_id if last is not None else "",
        wished=row.state == "DEAD" and row.death_reason in _WISHED,
        why=row.death_message,
    )


def node_seen(node: str, row: NodeRow) -> events.NodeSeen:
    """Return the event of one row of the node table, pushed or read."""
    return events.NodeSeen(
        node=node,
        alive=row.alive,
        at=time.time(),
        ended_at=row.ended_at,
        address=row.address,
        expected=row.reason
        in ("EXPECTED_TERMINATION", "AUTOSCALER_DRAIN_IDLE", "AUTOSCALER_DRAIN_PREEMPTED"),
        preempted=row.reason == "AUTOSCALER_DRAIN_PREEMPTED",
        why=row.why,
    )
