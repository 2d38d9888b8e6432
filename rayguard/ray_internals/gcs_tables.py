"""The tables of Ray's control process, read from a process that is connected to it; and one that is not.

Every question has Ray's own deadline. Where Ray has moved what a question needs, its answer is None or empty:
nobody knows.
"""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any

from rayguard.ray_internals.capability import Capability
from rayguard.ray_internals.rows import ActorRow, JobRow, WorkerRow, actor_row_of, job_row_of, worker_row_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_ACCESSOR = {
    "state": "ray._private.state:state",
    "accessor": "ray._private.state:GlobalState._connect_and_get_accessor",
}
_JOB_S = 10.0
_HELD = ("CPU", "GPU", "TPU")
_actors = Capability(
    "table of actors",
    "an actor's earlier lives and its restart options are not known",
    {
        **_ACCESSOR,
        "one": "ray._raylet:GlobalStateAccessor.get_actor_info",
        "all": "ray._raylet:GlobalStateAccessor.get_actor_table",
        "row": "ray.core.generated.gcs_pb2:ActorTableData",
    },
    test=lambda found: actor_row_of(found["row"]()),
)
_workers = Capability(
    "table of workers",
    "Ray's own account of how a worker ended is not known",
    {
        **_ACCESSOR,
        "one": "ray._raylet:GlobalStateAccessor.get_worker_info",
        "row": "ray.core.generated.gcs_pb2:WorkerTableData",
    },
    test=lambda found: worker_row_of(found["row"]()),
)
_jobs = Capability(
    "table of jobs",
    "`rayguard` shows no jobs",
    {
        **_ACCESSOR,
        "all": "ray._raylet:GlobalStateAccessor.get_job_table",
        "row": "ray.core.generated.gcs_pb2:JobTableData",
    },
    test=lambda found: job_row_of(found["row"]()),
)
_job = Capability(
    "row of a job",
    "whether a job is over is not known: what ends with it is told as a fault, its alerts stay for a while",
    {
        "client": "ray.experimental.internal_kv:internal_kv_get_gcs_client",
        "row": "ray.core.generated.gcs_pb2:JobTableData",
    },
    parts=("get_all_job_info",),
    test=lambda found: job_row_of(found["row"]()),
)
_draining = Capability(
    "draining nodes",
    "an agent does not leave a node that is told to go, and nobody is warned of its end",
    {"state": "ray._private.state:state", "draining": "ray._private.state:GlobalState.get_draining_nodes"},
)
_in_use = Capability(
    "resources of nodes",
    "which nodes a job uses is not known: none of them is given an agent",
    {
        "free": "ray._private.state:available_resources_per_node",
        "total": "ray._private.state:total_resources_per_node",
    },
)
_unconnected = Capability(
    "questions to other clusters",
    "the object store of a cluster is not read by a process that is not connected to it",
    {
        "state": "ray._private.state:GlobalState",
        "initialize": "ray._private.state:GlobalState._initialize_global_state",
        "nodes": "ray._private.state:GlobalState.node_table",
        "disconnect": "ray._private.state:GlobalState.disconnect",
        "options": "ray._raylet:GcsClientOptions.create",
        "settings": "ray._raylet:GlobalStateAccessor.get_system_config",
    },
    parts=("_global_state_accessor",),
)


def actor_row(actor_id: str) -> ActorRow | None:
    """Return what Ray knows of an actor now; None for nothing."""
    if not _actors.usable():
        return None
    from ray import ActorID  # noqa: PLC0415 - only where Ray runs

    found = _asked(_actors, "one", ActorID(bytes.fromhex(actor_id)))
    return None if found is None else _actor(found)


def actors_mentioning(worker_id: str, job_id: str) -> list[ActorRow]:
    """Return the actors of a job in whose rows a worker stands: as a life of theirs, or as their owner.

    All rows of the job are fetched, 1 kB each, and two of them parsed.
    """
    if not _actors.usable():
        return []
    from ray import JobID  # noqa: PLC0415 - only where Ray runs

    wanted = bytes.fromhex(worker_id)
    job = JobID(bytes.fromhex(job_id)) if job_id else None
    return [_actor(row) for row in _asked(_actors, "all", job, None) if wanted in row]


def job_actors(job_id: str) -> list[ActorRow]:
    """Return all actors of a job, the dead ones too: 1 kB each from the head node."""
    if not _actors.usable():
        return []
    from ray import JobID  # noqa: PLC0415 - only where Ray runs

    return [_actor(row) for row in _asked(_actors, "all", JobID(bytes.fromhex(job_id)), None)]


def living_actors() -> list[ActorRow]:
    """Return all living actors of the cluster: 1 kB each from the head node.

    This and ``jobs``, which people ask for:

    Raises:
        CapabilityOffError: Ray has moved its table.
    """
    return [_actor(row) for row in _asked(_actors, "all", None, "ALIVE")]


def worker_row(worker_id: str) -> WorkerRow | None:
    """Return Ray's row of a worker; None when it has none (any more)."""
    if not _workers.usable():
        return None
    from ray import WorkerID  # noqa: PLC0415 - only where Ray runs

    found = _asked(_workers, "one", WorkerID(bytes.fromhex(worker_id)))
    return None if found is None else worker_row_of(_workers.found()["row"].FromString(found))


def jobs() -> list[JobRow]:
    """Return all jobs that Ray remembers."""
    rows = _asked(_jobs, "all", skip_submission_job_info_field=True, skip_is_running_tasks_field=True)
    return [job_row_of(_jobs.found()["row"].FromString(row)) for row in rows]


def job_row(job_id: str) -> JobRow | None:
    """Return Ray's row of a job; None when it has none (any more)."""
    if not _job.usable() or (client := _job.found()["client"]()) is None:
        return None
    rows = _job.part(client, "get_all_job_info")(
        job_or_submission_id=job_id,
        skip_submission_job_info_field=True,
        skip_is_running_tasks_field=True,
        timeout=_JOB_S,
    )
    return next((row for row in map(job_row_of, rows.values()) if row.job_id == job_id), None)


def draining_nodes() -> dict[str, int]:
    """Return the deadlines (wall clock, ms; 0: none) of the nodes that drain."""
    return dict(_draining.found()["state"].get_draining_nodes()) if _draining.usable() else {}


def nodes_in_use() -> set[str]:
    """Return the nodes of which a job has resources."""
    if not _in_use.usable():
        return set()
    free, total = _in_use.found()["free"](), _in_use.found()["total"]()
    return {
        node
        for node, most in total.items()
        if any(free.get(node, {}).get(name, 0.0) < most.get(name, 0.0) for name in _HELD)
    }


def raylet_of(gcs_address: str, node_id: str) -> tuple[str, Mapping[str, Any]] | None:
    """Ask a control process that one is not connected to: where a node's raylet listens, and all settings.

    None where it does not know the node, or the node is dead. Where nothing listens, Ray's client tries for
    many seconds.
    """
    with _another_cluster(gcs_address) as state:
        if state is None:
            return None
        row = next((row for row in state.node_table() if row["NodeID"] == node_id), None)
        if row is None or not row["Alive"]:
            return None
        accessor = _unconnected.part(state, "_global_state_accessor")
        settings = json.loads(accessor.get_system_config() or b"{}")
        return f"{row['NodeManagerAddress']}:{row['NodeManagerPort']}", settings


def actor_row_there(gcs_address: str, actor_id: str) -> ActorRow | None:
    """Ask a control process that one is not connected to for an actor; None for nothing. May raise."""
    with _another_cluster(gcs_address) as state:
        if state is None or not _actors.usable():
            return None
        from ray import ActorID  # noqa: PLC0415 - only where Ray runs

        asked = _actors.found()
        found = asked["one"](asked["accessor"](state), ActorID(bytes.fromhex(actor_id)))
        return None if found is None else _actor(found)


@contextlib.contextmanager
def _another_cluster(gcs_address: str) -> Iterator[Any]:
    """Give a connection of one's own to a control process; None where Ray has moved what it needs."""
    if not _unconnected.usable():
        yield None
        return
    found = _unconnected.found()
    state = found["state"]()
    try:
        state._initialize_global_state(  # noqa: SLF001 - Ray has no public way to ask a cluster one is not in
            found["options"](gcs_address, None, allow_cluster_id_nil=True, fetch_cluster_id_if_nil=False)
        )
        yield state
    finally:
        state.disconnect()


def _asked(capability: Capability, question: str, *what: object, **options: object) -> Any:
    found = capability.found()
    return found[question](found["accessor"](found["state"]), *what, **options)


def _actor(data: bytes) -> ActorRow:
    return actor_row_of(_actors.found()["row"].FromString(data))
