"""What a node's agent asks Ray: rows of workers and actors, the nodes, the table of names.

All private interfaces that the agent uses are in this file. Every question has Ray's own deadline; the only
subscription is to the ends of workers, a message for each, of all nodes.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rayguard.cluster.death_story import ActorFacts, RaysWord
from rayguard.process.identity import ProcessId
from rayguard.process.killer_evidence import last_lines
from rayguard.recovery.harmless import harmless

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

NAMESPACE = b"rayguard"  # of lines in the table of names
OURS = "_rayguard"  # of our actors
_DEADLINE_S = 10.0
_SUBSCRIBE_S = 20.0
_AGAIN_S = (1.0, 5.0, 30.0)
_LOOK_S = 30.0
_EMPTY_S = 1.0  # a poll that returns nothing before this has lost its connection
_LOG = re.compile(r"worker-([0-9a-f]{56})-[0-9a-f]+-(\d+)\.err")
_HELD = ("CPU", "GPU", "TPU")
_TASK = ":task_name:"
_NO_JOB = b"\xff" * 4  # of a worker that no job has taken yet
_LINES = 1_000
_GUESSES = " Some common causes include"


class ClusterOfAgent:
    """The cluster as the agent of ``node_id`` sees it. Needs a connected Ray in this process."""

    def __init__(self, node_id: str) -> None:
        self.node_id = node_id

    def worker(self, worker_id: str) -> RaysWord | None:
        """Return Ray's row of a worker; None when it has none (any more)."""
        from ray.core.generated import common_pb2  # noqa: PLC0415 - only where Ray runs

        row = _worker_row(worker_id)
        if row is None:
            return None
        return RaysWord(
            worker_id=worker_id,
            pid=int(row.pid),
            alive=bool(row.is_alive),
            began_at=row.start_time_ms / 1000,
            at=row.end_time_ms / 1000,
            kind="" if row.is_alive else common_pb2.WorkerExitType.Name(row.exit_type),
            said=row.exit_detail.partition(_GUESSES)[0],  # guesses are no evidence
            job_id=_job(row),
            worker=row.worker_type == common_pb2.WorkerType.Value("WORKER"),
        )

    def actor_in(self, worker_id: str, job_id: str) -> ActorFacts | None:
        """Return the actor whose process this worker is or was; None for a worker of tasks.

        All rows of the job are fetched, 1 kB each, and two of them parsed.
        """
        from ray import JobID  # noqa: PLC0415 - only where Ray runs

        wanted = bytes.fromhex(worker_id)
        job = JobID(bytes.fromhex(job_id)) if job_id else None
        rows = [row for row in _accessor().get_actor_table(job, None) if wanted in row]
        return next((one for row in rows if (one := _actor(row, wanted)) is not None), None)

    def actor_with(self, pid: int, job_id: str) -> str:
        """Return the id of the actor that lives in a process of this node; '' for none."""
        worker_id = self.worker_id_of(pid)
        actor = self.actor_in(worker_id, job_id) if worker_id and job_id else None
        return "" if actor is None else actor.actor_id

    def actor(self, actor_id: str) -> ActorFacts | None:
        """Return what Ray knows of an actor now."""
        from ray import ActorID  # noqa: PLC0415 - only where Ray runs

        found = _accessor().get_actor_info(ActorID(bytes.fromhex(actor_id)))
        return None if found is None else _actor(found, b"")

    def worker_id_of(self, pid: int) -> str:
        """Return the id of the worker that had this pid, from the names of its logs; '' for none."""
        found = [
            (path, match[1])
            for path in _logs().glob(f"worker-*-{pid}.err")
            if (match := _LOG.fullmatch(path.name)) and match[2] == str(pid)
        ]
        return max(found, key=lambda one: one[0].stat().st_mtime)[1] if found else ""

    def gone_since(self, since: float) -> list[str]:
        """Return the ids of the dead workers of this node whose logs were written to since then (wall clock).

        Asks only for those whose process is gone; nodes that share a machine share the folder of logs.
        """
        found = []
        for path in _logs().glob("worker-*.err"):
            match = _LOG.fullmatch(path.name)
            with harmless("agent_gcs"):
                recent = match is not None and path.stat().st_mtime >= since
                if not (match and recent) or ProcessId.of(int(match[2])) is not None:
                    continue
                row = _worker_row(match[1])
                if row is not None and row.worker_address.node_id.hex() == self.node_id:
                    found.append(match[1])
        return found

    def stderr_of(self, worker_id: str, pid: int) -> str:
        """Return where a worker of this node wrote its standard error to; '' for nowhere."""
        return next(map(str, _logs().glob(f"worker-{worker_id}-*-{pid}.err")), "")

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
        from ray._private import state  # noqa: PLC0415 - only where Ray runs

        return set(state.state.get_draining_nodes())

    def in_use(self) -> set[str]:
        """Return the nodes of which a job has resources."""
        from ray._private import state  # noqa: PLC0415 - only where Ray runs

        free = state.available_resources_per_node()
        return {
            node
            for node, total in state.total_resources_per_node().items()
            if any(free.get(node, {}).get(name, 0.0) < total.get(name, 0.0) for name in _HELD)
        }

    def end(self, name: str) -> None:
        """End one of our actors for good, this one too."""
        import ray  # noqa: PLC0415 - only where Ray runs

        ray.kill(ray.get_actor(name, namespace=OURS), no_restart=True)

    def listen(self, ended: Callable[[str], None], stopped: threading.Event) -> None:
        """Tell ``ended`` the id of each worker of this node that ends, until ``stopped``. Blocks."""
        failures = 0
        while not stopped.is_set():
            began = time.monotonic()
            with harmless("agent_gcs"):
                asyncio.run(self._listen(ended, stopped))
            failures = 0 if time.monotonic() - began > _AGAIN_S[-1] else failures + 1
            stopped.wait(_AGAIN_S[min(failures, len(_AGAIN_S) - 1)])

    async def _listen(self, ended: Callable[[str], None], stopped: threading.Event) -> None:
        import ray  # noqa: PLC0415 - only where Ray runs
        from ray._private.gcs_pubsub import GcsAioWorkerDeltaSubscriber  # noqa: PLC0415

        line = GcsAioWorkerDeltaSubscriber(address=ray.get_runtime_context().gcs_address)
        here = bytes.fromhex(self.node_id)
        await asyncio.wait_for(line.subscribe(), _SUBSCRIBE_S)
        try:
            while not stopped.is_set():
                began = time.monotonic()
                polled = asyncio.ensure_future(line.poll(batch_size=100))
                while not polled.done() and not stopped.is_set():
                    await asyncio.wait({polled}, timeout=_LOOK_S)  # its own deadline would end the line
                if not polled.done():
                    polled.cancel()
                    return
                news = polled.result()
                if not news and time.monotonic() - began < _EMPTY_S:
                    raise ConnectionError("Ray's word on workers is not heard any more")
                for _, delta in news:
                    if delta.node_id == here:
                        ended(delta.worker_id.hex())
        finally:
            await asyncio.wait_for(line.close(), _DEADLINE_S)


def say(key: str, what: dict[str, Any]) -> None:
    """Put a line into the cluster's table of names."""
    _table().internal_kv_put(key.encode(), json.dumps(what).encode(), True, NAMESPACE, _DEADLINE_S)  # noqa: FBT003 - a C signature


def unsay(key: str) -> None:
    """Take a line out of the cluster's table of names."""
    _table().internal_kv_del(key.encode(), False, NAMESPACE, _DEADLINE_S)  # noqa: FBT003 - a C signature


def said(prefix: str) -> dict[str, dict[str, Any]]:
    """Return the lines whose keys begin so, by the rest of their keys."""
    wanted = [key.encode() for key in keys(prefix)]
    lines = _table().internal_kv_multi_get(wanted, NAMESPACE, _DEADLINE_S) if wanted else {}
    return {key.decode().removeprefix(prefix): dict(json.loads(line)) for key, line in lines.items()}


def keys(prefix: str) -> list[str]:
    """Return the keys of the table of names that begin so."""
    return [key.decode() for key in _table().internal_kv_keys(prefix.encode(), NAMESPACE, _DEADLINE_S) or ()]


def _table() -> Any:
    # The client itself and not ray.experimental's functions around it: those take no deadline.
    from ray.experimental.internal_kv import internal_kv_get_gcs_client  # noqa: PLC0415

    client = internal_kv_get_gcs_client()
    if client is None:
        raise RuntimeError("Ray is not running in this process")
    return client


def _accessor() -> Any:
    from ray._private import state  # noqa: PLC0415 - only where Ray runs

    return state.state._connect_and_get_accessor()  # noqa: SLF001


def _worker_row(worker_id: str) -> Any | None:
    from ray import WorkerID  # noqa: PLC0415 - only where Ray runs
    from ray.core.generated import gcs_pb2  # noqa: PLC0415

    found = _accessor().get_worker_info(WorkerID(bytes.fromhex(worker_id)))
    return None if found is None else gcs_pb2.WorkerTableData.FromString(found)


def _job(row: Any) -> str:
    """Return the job of a worker's row; '' for none, and of an old Ray, whose rows do not say."""
    found = getattr(row, "job_id", b"")
    return "" if found == _NO_JOB else str(found.hex())


def _logs() -> Path:
    from ray._private import worker  # noqa: PLC0415 - only where Ray runs

    return Path(worker._global_node.get_logs_dir_path())  # noqa: SLF001


def _actor(data: bytes, worker_id: bytes) -> ActorFacts | None:
    from ray.core.generated import gcs_pb2  # noqa: PLC0415 - only where Ray runs

    row = gcs_pb2.ActorTableData.FromString(data)
    lives = [row.address.worker_id, *(one.worker_id for one in getattr(row, "previous_incarnations", ()))]
    if worker_id and worker_id not in lives:
        return None  # it stands in the row for another reason: as the owner's
    cause = row.death_cause
    return ActorFacts(
        actor_id=row.actor_id.hex(),
        class_name=str(row.class_name).rpartition(".")[2],
        job_id=row.job_id.hex(),
        state=gcs_pb2.ActorTableData.ActorState.Name(row.state),
        pid=int(row.pid),
        lives=int(row.num_restarts),
        memory_said=cause.oom_context.error_message if cause.HasField("oom_context") else "",
        ours=row.ray_namespace == OURS,
    )
