"""Which life of an actor this process is, and the small memory that outlives it.

Does not count, bound or cause restarts: that is ``rayguard.actors.guard.restarts``.
"""

from __future__ import annotations

import json
import os
import re
import signal
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from rayguard.harmless import harmless
from rayguard.ray_internals import kv
from rayguard.ray_internals.gcs_tables import actor_row, worker_row
from rayguard.ray_internals.worker import connected_ray, logs_folder, this_actor_id, this_outlives_its_job

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rayguard.ray_internals.rows import PastLife

PROCESS_PART = "process"  # of an actor's memory: its restarts, and what ended its last life
_VERSION = 1
_UNTOLD = 16  # deaths that one life tells of, beside the last
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
    outlives_job: bool = False  # it is detached, or made by one that is
    gcs_address: str = ""  # of Ray's control process

    @property
    def restartable(self) -> bool:
        """Say whether Ray starts this actor again when its process dies."""
        return self.max_restarts == _ENDLESS or self.number < self.max_restarts

    @classmethod
    def current(cls) -> Incarnation:
        """Return the life that this process is. Asks Ray's control process: about 1 ms."""
        actor_id = this_actor_id()
        if not actor_id:
            return cls(pid=os.getpid())
        import ray  # noqa: PLC0415 - loaded already, or there were no worker

        context = ray.get_runtime_context()
        row = actor_row(actor_id)
        if row is None:  # a Ray that keeps its table elsewhere: its public word, and no restart on our behalf
            number, limit, name = int(bool(context.was_current_actor_reconstructed)), 0, ""
        else:
            number, limit, name = row.lives, row.max_restarts, row.class_name
        return cls(
            actor_id=actor_id,
            class_name=name,
            job_id=context.get_job_id(),
            node_id=context.get_node_id(),
            pid=os.getpid(),
            number=number,
            max_restarts=limit,
            outlives_job=this_outlives_its_job(),
            gcs_address=context.gcs_address,
        )

    @classmethod
    def of_owner(cls) -> Incarnation:
        """Return what this process is for what it owns: its job at least, also in a driver."""
        life = cls.current()
        ray = connected_ray()
        if life.job_id or ray is None:
            return life
        return replace(life, job_id=ray.get_runtime_context().get_job_id())


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
        earlier = _earlier_lives()
        return cls._of(earlier[-1]) if earlier else None

    @classmethod
    def untold(cls, told_pid: int) -> list[tuple[int, PastDeath]]:
        """Return the deaths between that of process ``told_pid`` and the last one, with their lives' numbers.

        Nobody told of them: the lives that they led to ended before rayguard had arrived in them. At most 16,
        the newest; asks Ray for no more than those and the one that was told.
        """
        found: list[tuple[int, PastDeath]] = []
        for number, life in [*enumerate(_earlier_lives()[:-1])][: -_UNTOLD - 1 : -1]:
            death = cls._of(life)
            if death is not None and death.pid == told_pid:
                break
            found += [] if death is None else [(number, death)]
        return found[::-1]

    @classmethod
    def _of(cls, last: PastLife) -> PastDeath | None:
        dead = worker_row(last.worker_id)
        if dead is None:
            return None
        stated = _EXIT_CODE.search(dead.said)
        code = int(stated.group(1)) if stated else _crash(last.worker_id, dead.pid)
        return cls(
            pid=dead.pid, at=dead.at, how=f"{dead.kind}: {dead.said}", exitcode=code, node_id=last.node_id
        )


def _earlier_lives() -> Sequence[PastLife]:
    actor_id = this_actor_id()
    row = actor_row(actor_id) if actor_id else None
    return () if row is None else row.earlier  # Ray 2.60; older ones do not keep them


def _crash(worker_id: str, pid: int) -> int | None:
    """Return the signal (negative) that a worker of this node wrote of as it died, None if it wrote none."""
    with harmless("last words"):
        for file in logs_folder().glob(f"worker-{worker_id}-*-{pid}.err"):
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
        self._key = f"actor:{actor_id}:{part}" if actor_id else ""

    def load(self) -> dict[str, Any]:
        """Return what was saved last, or an empty dict."""
        with harmless("memory"):
            found = kv.get(self._key, deadline_s=_DEADLINE_S) if self._key else None
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
                kv.put(self._key, data, deadline_s=_DEADLINE_S)
                return True
        return False

    def delete(self) -> None:
        """Forget."""
        with harmless("memory"):
            if self._key:
                kv.delete(self._key, deadline_s=_DEADLINE_S)
