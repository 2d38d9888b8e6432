"""Which life of an actor this process is, and the small memory that outlives it.

Does not count, bound or cause restarts: that is ``rayguard.actors.restart``.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rayguard.recovery.harmless import harmless

PROCESS_PART = "process"  # of an actor's memory: its restarts, and what ended its last life
_NAMESPACE = b"rayguard"
_VERSION = 1
_MAX_BYTES = 256 << 10  # the table lives in the memory of Ray's control process
_DEADLINE_S = 2.0  # without it a call to a control process that is down waits for a minute
_ENDLESS = -1
_TAIL_BYTES = 64 << 10
_EXIT_CODE = re.compile(r"\bexit code (\d+)")
_CRASHED = re.compile(rb"\*\*\* (SIG[A-Z]+) received at time=")  # written by Ray's own signal handler


@dataclass(frozen=True, slots=True, kw_only=True)
class Incarnation:
    """One life of an actor. ``number`` is 0 for the first; ``actor_id`` is empty outside an actor."""

    actor_id: str = ""
    class_name: str = ""
    job_id: str = ""
    node_id: str = ""
    pid: int = 0
    number: int = 0
    max_restarts: int = 0  # as Ray has it: -1 is without end

    @property
    def restartable(self) -> bool:
        """Say whether Ray starts this actor again when its process dies."""
        return self.max_restarts == _ENDLESS or self.number < self.max_restarts

    @classmethod
    def current(cls) -> Incarnation:
        """Return the life that this process is. Asks Ray's control process: about 1 ms."""
        worker = _actor_worker()
        if worker is None:
            return cls(pid=os.getpid())
        import ray  # noqa: PLC0415 - loaded already, or there were no worker

        context = ray.get_runtime_context()
        row = actor_row(worker.actor_id)
        if row is None:  # a Ray that keeps its table elsewhere: its public word, and no restart on our behalf
            number, limit, name = int(bool(context.was_current_actor_reconstructed)), 0, ""
        else:
            number, limit = int(row.num_restarts), int(row.max_restarts)
            name = str(row.class_name).rpartition(".")[2]
        return cls(
            actor_id=worker.actor_id.hex(),
            class_name=name,
            job_id=context.get_job_id(),
            node_id=context.get_node_id(),
            pid=os.getpid(),
            number=number,
            max_restarts=limit,
        )

    @classmethod
    def of_owner(cls) -> Incarnation:
        """Return what this process is for what it owns: its job at least, also in a driver."""
        life = cls.current()
        ray = sys.modules.get("ray")
        if life.job_id or ray is None or not ray.is_initialized():
            return life
        return replace(life, job_id=ray.get_runtime_context().get_job_id())


def inside_ray_worker() -> bool:
    """Say whether an actor lives in this process or may come to: a driver never becomes one."""
    return _worker() is not None


def this_actor() -> object | None:
    """Return the actor that lives in this process, from before its ``__init__`` on; else None."""
    worker = _actor_worker()
    return None if worker is None else worker.actors.get(worker.actor_id)


def actor_row(actor_id: Any) -> Any | None:
    """Return the actor's row in the table of Ray's control process, or None where there is none to read."""
    from ray._private import state  # noqa: PLC0415 - only where Ray runs
    from ray.core.generated import gcs_pb2  # noqa: PLC0415

    found = state.state._connect_and_get_accessor().get_actor_info(actor_id)  # noqa: SLF001
    return None if found is None else gcs_pb2.ActorTableData.FromString(found)


@dataclass(frozen=True, slots=True)
class PastDeath:
    """How the process of the life before this one ended, as Ray saw it.

    ``exitcode`` is as in ``multiprocessing``. Ray's own word has one only for an end that it asked for; a
    crash stands in the worker's log; after SIGKILL and ``os._exit`` nobody can tell (None).
    """

    pid: int
    at: float  # wall clock, seconds
    how: str
    exitcode: int | None = None
    node_id: str = ""

    @classmethod
    def before_this(cls) -> PastDeath | None:
        """Return the death that made this life necessary; None when Ray no longer knows it."""
        from ray import WorkerID  # noqa: PLC0415 - only where Ray runs
        from ray._private import state  # noqa: PLC0415
        from ray.core.generated import common_pb2, gcs_pb2  # noqa: PLC0415

        worker = _actor_worker()
        row = None if worker is None else actor_row(worker.actor_id)
        earlier = list(getattr(row, "previous_incarnations", ()))  # Ray 2.60; older ones do not keep them
        if not earlier:
            return None
        accessor = state.state._connect_and_get_accessor()  # noqa: SLF001
        found = accessor.get_worker_info(WorkerID(earlier[-1].worker_id))
        if found is None:
            return None
        dead = gcs_pb2.WorkerTableData.FromString(found)
        kind = common_pb2.WorkerExitType.Name(dead.exit_type)
        # Ray goes on to guess ("killed by the OOM killer", "SIGSEGV"): guesses are no evidence.
        detail = dead.exit_detail.partition(" Some common causes include")[0]
        said = _EXIT_CODE.search(detail)
        code = int(said.group(1)) if said else _crash(earlier[-1].worker_id.hex(), dead.pid)
        return cls(
            pid=dead.pid,
            at=dead.end_time_ms / 1000,
            how=f"{kind}: {detail}",
            exitcode=code,
            node_id=earlier[-1].node_id.hex(),
        )


def _crash(worker_id: str, pid: int) -> int | None:
    """Return the signal (negative) that a worker of this node wrote of as it died, None if it wrote none."""
    with harmless("last words"):
        from ray._private import worker  # noqa: PLC0415 - only where Ray runs

        for file in Path(worker._global_node.get_logs_dir_path()).glob(f"worker-{worker_id}-*-{pid}.err"):  # noqa: SLF001
            with file.open("rb") as opened:
                opened.seek(max(0, file.stat().st_size - _TAIL_BYTES))
                found = _CRASHED.findall(opened.read(_TAIL_BYTES))
            if found:
                return -signal.Signals[found[-1].decode()].value
    return None


class ActorMemory:
    """A little state of one actor, kept by Ray's control process: it survives the actor and its node.

    ``part`` separates its users. Nothing here raises: without memory an actor starts as if for the first
    time, and ``guard_error("memory")`` counts it. Not for tokens or weights (at most 256 KiB of JSON).
    """

    def __init__(self, actor_id: str, part: str = "state") -> None:
        self._key = f"actor:{actor_id}:{part}".encode() if actor_id else b""

    def load(self) -> dict[str, Any]:
        """Return what was saved last, or an empty dict."""
        with harmless("memory"):
            found = self._table().internal_kv_get(self._key, _NAMESPACE, _DEADLINE_S) if self._key else None
            if found is not None:
                record = json.loads(found)
                if record["version"] != _VERSION:
                    raise ValueError(f"the memory of {self._key!r} has version {record['version']}")
                return dict(record["values"])
        return {}

    def save(self, values: dict[str, Any]) -> bool:
        """Replace what is kept by ``values`` (plain JSON types); say whether it is safe now."""
        with harmless("memory"):
            if self._key:
                data = json.dumps({"version": _VERSION, "values": values}).encode()
                if len(data) > _MAX_BYTES:
                    raise ValueError(f"{len(data)} bytes for {self._key!r}: at most {_MAX_BYTES} are kept")
                self._table().internal_kv_put(self._key, data, True, _NAMESPACE, _DEADLINE_S)  # noqa: FBT003 - a C signature
                return True
        return False

    def delete(self) -> None:
        """Forget."""
        with harmless("memory"):
            if self._key:
                self._table().internal_kv_del(self._key, False, _NAMESPACE, _DEADLINE_S)  # noqa: FBT003 - a C signature

    @staticmethod
    def _table() -> Any:
        # The client itself and not ray.experimental's functions around it: those take no deadline.
        from ray.experimental.internal_kv import internal_kv_get_gcs_client  # noqa: PLC0415

        client = internal_kv_get_gcs_client()
        if client is None:
            raise RuntimeError("Ray is not running in this process")
        return client


def _worker() -> Any | None:
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return None
    worker = ray._private.worker.global_worker  # noqa: SLF001
    return worker if worker.mode == ray.WORKER_MODE else None


def _actor_worker() -> Any | None:
    worker = _worker()
    return None if worker is None or worker.actor_id.is_nil() else worker
