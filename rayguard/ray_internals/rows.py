"""What rayguard takes from Ray's rows of workers, actors, nodes and jobs: plain values, no protobuf.

Nothing is asked here: that is ``gcs_tables`` and ``gcs_connection``. Each conversion of an empty row is the
self-test of those who ask: it raises where Ray has renamed a field.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

OURS = "_rayguard"  # the namespace of our own actors
_RETURNS = frozenset({"RESTARTING", "ALIVE", "PENDING_CREATION", "DEPENDENCIES_UNREADY"})
_GUESSES = " Some common causes include"  # ("killed by the OOM killer", "SIGSEGV"): guesses are no evidence
_NOBODY = "ff"  # what Ray has for "no node", "no worker" and "no job", over and over


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRow:
    """Ray's row of one worker. Times are wall-clock seconds; ``kind`` is its WorkerExitType."""

    worker_id: str
    pid: int
    alive: bool
    began_at: float = 0.0
    at: float = 0.0
    kind: str = ""
    said: str = ""
    job_id: str = ""
    worker: bool = True  # and no driver, no process that spills objects
    driver: bool = False
    node_id: str = ""


@dataclass(frozen=True, slots=True)
class PastLife:
    """Where an earlier process of an actor was."""

    node_id: str
    worker_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorRow:
    """Ray's row of one actor. ``lives`` counts its restarts; where it is, is '' while it is nowhere."""

    actor_id: str
    class_name: str = ""
    class_path: str = ""  # "module:Class"; '' where Ray does not say it
    job_id: str = ""
    state: str = ""
    pid: int = 0
    lives: int = 0
    max_restarts: int = 0  # -1 is without end
    node_id: str = ""
    worker_id: str = ""
    earlier: tuple[PastLife, ...] = ()  # only in rows that are read, not in pushed ones, nor in an old Ray
    preempted: bool = False
    died_with_node: bool = False
    death_reason: str = ""
    death_message: str = ""
    memory_said: str = ""  # of Ray's memory monitor, where that ended it
    ours: bool = False  # an agent or a supervisor of rayguard
    detached: bool = False  # it may outlive its job

    @property
    def returns(self) -> bool:
        """Say whether there is or will be a next life."""
        return self.state in _RETURNS


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRow:
    """Ray's row of one node. ``ended_at`` is 0 while it lives; ``reason`` is its NodeDeathInfo's."""

    node_id: str
    alive: bool
    address: str = ""
    ended_at: float = 0.0
    reason: str = ""
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRow:
    """Ray's row of one job."""

    job_id: str
    running: bool
    began_at: float = 0.0
    ended_at: float = 0.0
    entrypoint: str = ""
    namespace: str = ""
    runtime_env: str = ""  # JSON
    driver: str = ""  # its worker id


def worker_row_of(row: Any) -> WorkerRow:
    """Read a ``WorkerTableData``."""
    return WorkerRow(
        worker_id=row.worker_address.worker_id.hex(),
        pid=int(row.pid),
        alive=bool(row.is_alive),
        began_at=row.start_time_ms / 1000,
        at=row.end_time_ms / 1000,
        kind="" if row.is_alive else enum_name(row, "exit_type"),
        said=row.exit_detail.partition(_GUESSES)[0],
        job_id=somebody(getattr(row, "job_id", b"")),  # the rows of an old Ray do not say
        worker=enum_name(row, "worker_type") == "WORKER",
        driver=enum_name(row, "worker_type") == "DRIVER",
        node_id=row.worker_address.node_id.hex(),
    )


def actor_row_of(row: Any) -> ActorRow:
    """Read an ``ActorTableData``; a pushed one has few of its fields."""
    cause = row.death_cause
    died = cause.actor_died_error_context
    made_by = row.function_descriptor.python_function_descriptor
    return ActorRow(
        actor_id=row.actor_id.hex(),
        class_name=str(row.class_name).rpartition(".")[2],
        class_path=f"{made_by.module_name}:{made_by.class_name}" if made_by.class_name else "",
        job_id=row.job_id.hex(),
        state=enum_name(row, "state"),
        pid=int(row.pid),
        lives=int(row.num_restarts),
        max_restarts=int(row.max_restarts),
        node_id=somebody(row.address.node_id),
        worker_id=somebody(row.address.worker_id),
        earlier=tuple(
            PastLife(somebody(one.node_id), somebody(one.worker_id))
            for one in getattr(row, "previous_incarnations", ())
        ),
        preempted=bool(getattr(row, "preempted", False)),
        died_with_node=bool(died.HasField("node_death_info")),
        death_reason=enum_name(died, "reason") if hasattr(died, "reason") else "",
        death_message=str(died.error_message),
        memory_said=cause.oom_context.error_message if cause.HasField("oom_context") else "",
        ours=row.ray_namespace == OURS,
        detached=bool(getattr(row, "is_detached", False)),
    )


def node_row_of(row: Any) -> NodeRow:
    """Read a ``GcsNodeInfo``."""
    return NodeRow(
        node_id=row.node_id.hex(),
        alive=enum_name(row, "state") == "ALIVE",
        address=str(row.node_manager_address),
        ended_at=getattr(row, "end_time_ms", 0) / 1000,
        reason=enum_name(row.death_info, "reason"),
        why=str(row.death_info.reason_message),
    )


def job_row_of(row: Any) -> JobRow:
    """Read a ``JobTableData``."""
    return JobRow(
        job_id=row.job_id.hex(),
        running=not row.is_dead,
        began_at=row.start_time / 1000,
        ended_at=row.end_time / 1000,
        entrypoint=str(row.entrypoint),
        namespace=str(row.config.ray_namespace),
        runtime_env=str(row.config.runtime_env_info.serialized_runtime_env),
        driver=somebody(row.driver_address.worker_id) if hasattr(row, "driver_address") else "",  # an old Ray
    )


def enum_name(row: Any, field: str) -> str:
    """Return the name of an enum's value: ``exit_type`` of a worker's row, for one."""
    values = row.DESCRIPTOR.fields_by_name[field].enum_type.values_by_number
    value = values.get(getattr(row, field))
    return "" if value is None else str(value.name)


def somebody(name: bytes) -> str:
    """Return an id in hex; '' where Ray writes that there is nobody."""
    found = name.hex()
    return "" if found == _NOBODY * (len(found) // 2) else found
