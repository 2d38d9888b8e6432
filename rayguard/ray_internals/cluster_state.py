"""The cluster as a node's agent sees it: rows of workers and actors, the nodes, the logs of its own workers.

Every question has Ray's own deadline; the only subscription is to the ends of workers, a message for each, of
all nodes.
"""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING

from rayguard.harmless import harmless
from rayguard.process.death_cause.evidence import last_lines
from rayguard.process.identity import ProcessId
from rayguard.ray_internals import gcs_tables, worker
from rayguard.ray_internals.gcs_connection import WorkerEnds
from rayguard.ray_internals.gcs_subscription import all_at_once, kept_up
from rayguard.ray_internals.rows import OURS, ActorRow, JobRow, WorkerRow

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable


_LOOK_S = 1.0
_LOST = "Ray's word on the ends of workers is not heard, their processes will be"
_LOG = re.compile(r"worker-([0-9a-f]{56})-[0-9a-f]+-(\d+)\.err")
_TASK = ":task_name:"
_LINES = 1_000


class ClusterOfAgent:
    """The cluster as the agent of ``node_id`` sees it. Needs a connected Ray in this process."""

    def __init__(self, node_id: str) -> None:
        self.node_id = node_id

    def worker(self, worker_id: str) -> WorkerRow | None:
        """Return Ray's row of a worker; None when it has none (any more)."""
        return gcs_tables.worker_row(worker_id)

    def actor_in(self, worker_id: str, job_id: str) -> ActorRow | None:
        """Return the actor whose process this worker is or was; None for a worker of tasks."""
        for actor in gcs_tables.actors_mentioning(worker_id, job_id):
            if worker_id in (actor.worker_id, *(life.worker_id for life in actor.earlier)):
                return actor
        return None  # or it stands in a row for another reason: as the owner's

    def actor_with(self, pid: int, job_id: str) -> str:
        """Return the id of the actor that lives in a process of this node; '' for none."""
        worker_id = self.worker_id_of(pid)
        actor = self.actor_in(worker_id, job_id) if worker_id and job_id else None
        return "" if actor is None else actor.actor_id

    def actor(self, actor_id: str) -> ActorRow | None:
        """Return what Ray knows of an actor now."""
        return gcs_tables.actor_row(actor_id)

    def job(self, job_id: str) -> JobRow | None:
        """Return what Ray knows of a job now."""
        return gcs_tables.job_row(job_id)

    def worker_id_of(self, pid: int) -> str:
        """Return the id of the worker that had this pid, from the names of its logs; '' for none."""
        found = [
            (path, match[1])
            for path in worker.logs_folder().glob(f"worker-*-{pid}.err")
            if (match := _LOG.fullmatch(path.name)) and match[2] == str(pid)
        ]
        return max(found, key=lambda one: one[0].stat().st_mtime)[1] if found else ""

    def gone_since(self, since: float) -> list[str]:
        """Return the ids of the dead workers of this node whose logs were written to since then (wall clock).

        Asks only for those whose process is gone; nodes that share a machine share the folder of logs.
        """
        found = []
        for path in worker.logs_folder().glob("worker-*.err"):
            match = _LOG.fullmatch(path.name)
            with harmless("agent_gcs"):
                recent = match is not None and path.stat().st_mtime >= since
                if not (match and recent) or ProcessId.of(int(match[2])) is not None:
                    continue
                row = gcs_tables.worker_row(match[1])
                if row is not None and row.node_id == self.node_id:
                    found.append(match[1])
        return found

    def stderr_of(self, worker_id: str, pid: int) -> str:
        """Return where a worker of this node wrote its standard error to; '' for nowhere."""
        return next(map(str, worker.logs_folder().glob(f"worker-{worker_id}-*-{pid}.err")), "")

    def last_task_of(self, worker_id: str, pid: int) -> str:
        """Return the name of the task that a worker of this node ran last, as its log says; '' for none."""
        said = [line for line in last_lines(self.stderr_of(worker_id, pid), _LINES) if line.startswith(_TASK)]
        return said[-1].removeprefix(_TASK).rpartition(".")[2] if said else ""

    def nodes(self) -> dict[str, bool]:
        """Return the nodes that live, by id, and whether each is the head."""
        import ray  # noqa: PLC0415 - only where Ray runs

        return {
            row["NodeID"]: "node:__internal_head__" in row.get("Resources", {})
            for row in ray.nodes()
            if row["Alive"]
        }

    def draining(self) -> set[str]:
        """Return the nodes that will go."""
        return set(gcs_tables.draining_nodes())

    def in_use(self) -> set[str]:
        """Return the nodes of which a job has resources."""
        return gcs_tables.nodes_in_use()

    def end(self, name: str) -> None:
        """End one of our actors for good, this one too."""
        import ray  # noqa: PLC0415 - only where Ray runs

        ray.kill(ray.get_actor(name, namespace=OURS), no_restart=True)

    def listen(self, ended: Callable[[str], None], stopped: threading.Event) -> None:
        """Tell ``ended`` the id of each worker of this node that ends, until ``stopped``. Blocks."""
        with harmless("agent_gcs"):
            asyncio.run(all_at_once(kept_up(lambda: self._hear(ended), _LOST), _until(stopped)))

    async def _hear(self, ended: Callable[[str], None]) -> None:
        import ray  # noqa: PLC0415 - only where Ray runs

        line = WorkerEnds(ray.get_runtime_context().gcs_address)
        try:
            async for node_id, worker_id in line.heard():
                if node_id == self.node_id:
                    ended(worker_id)
        finally:
            await line.close()


async def _until(stopped: threading.Event) -> None:
    while not stopped.is_set():  # noqa: ASYNC110 - set by another thread
        await asyncio.sleep(_LOOK_S)
