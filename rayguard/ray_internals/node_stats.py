"""Ray's object store on one node, asked from its raylet: how full, and which process refers to how much.

Every question has a deadline; a cluster that has ended, or a Ray that is asked in another way, is a missing
reading.

A gRPC channel for each question, 2-3 ms of CPU: beside one that stays open, a few in 10,000 of the processes
that the user starts with ``preexec_fn`` abort before their program begins (gRPC's fork handlers).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rayguard.ray_internals.capability import Capability

DEADLINE_S = 0.5
_MAX_MESSAGE_BYTES = 512 << 20  # as Ray's own clients allow
_BORROWED = 0  # the task status of a reference that its holder does not own
_DRIVER = 1  # the type of a worker

ASKED_WITH = {  # any raylet
    "grpc": "ray._private.grpc_utils:grpc",
    "channel": "ray._private.grpc_utils:init_grpc_channel",  # adds the cluster's token
    "stub": "ray.core.generated.node_manager_pb2_grpc:NodeManagerServiceStub",
}
_stats = Capability(
    "statistics of the object store",
    "how full it is and who holds how much is not known",
    {
        **ASKED_WITH,
        "request": "ray.core.generated.node_manager_pb2:GetNodeStatsRequest",
        "reply": "ray.core.generated.node_manager_pb2:GetNodeStatsReply",
    },
    test=lambda found: _try_out(found["reply"]()),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreUser:
    """One Ray worker or driver. ``owned_bytes`` and ``borrowed_bytes``: of objects whose size is known."""

    pid: int
    driver: bool = False
    owned: int = 0  # objects, the small ones outside of the store too
    owned_bytes: int = 0
    borrowed_bytes: int = 0
    actors: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreMemory:
    """Bytes of the object store of a node; ``users`` only where they were asked for."""

    used: int
    capacity: int
    primary: int = 0  # of ``used``: the copies that cannot be dropped
    fallback: int = 0  # on disk, because the store was full
    spilled_total: int = 0  # written to disk since the raylet's start
    objects: int = 0
    users: tuple[StoreUser, ...] = ()


def raylets() -> dict[str, str]:
    """Return where the raylets of the living nodes listen (host:port), by node id. Needs a connected Ray."""
    import ray  # noqa: PLC0415 - only where Ray runs

    return {
        n["NodeID"]: f"{n['NodeManagerAddress']}:{n['NodeManagerPort']}" for n in ray.nodes() if n["Alive"]
    }


class StoreProbe:
    """Asks the raylet at ``address`` (host:port)."""

    def __init__(self, address: str, *, deadline_s: float = DEADLINE_S) -> None:
        self.address = address
        self._deadline_s = deadline_s

    def read(self, *, detail: bool = False) -> StoreMemory | None:
        """Return the store's state; None when the raylet does not answer in time."""
        reply = self._ask(detail=detail)
        return None if reply is None else _store(reply, detail=detail)

    def references(self) -> list[tuple[str, str]] | None:
        """Return (worker id, object id), in hex, of all that the node's workers refer to; None: no answer."""
        reply = self._ask(detail=True)
        return None if reply is None else _references(reply)

    def _ask(self, *, detail: bool) -> Any:
        if not _stats.usable():
            return None
        found = _stats.found()
        options = [("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES)]
        try:
            with found["channel"](self.address, options=options) as channel:
                request = found["request"](include_memory_info=detail)
                return found["stub"](channel).GetNodeStats(request, timeout=self._deadline_s)
        except found["grpc"].RpcError:
            return None


def _store(reply: Any, *, detail: bool) -> StoreMemory:
    store = reply.store_stats
    return StoreMemory(
        used=int(store.object_store_bytes_used),
        capacity=int(store.object_store_bytes_avail),
        primary=int(store.object_store_bytes_primary_copy),
        fallback=int(store.object_store_bytes_fallback),
        spilled_total=int(store.spilled_bytes_total),
        objects=int(store.num_local_objects),
        users=tuple(map(_user, reply.core_workers_stats)) if detail else (),
    )


def _user(worker: Any) -> StoreUser:
    # An object can be listed by several names (a return value, and its references inside): count it once.
    sizes = {
        bytes(ref.object_id): (int(ref.object_size), int(ref.task_status) != _BORROWED)
        for ref in worker.object_refs
        if int(ref.object_size) > 0  # negative where nobody knows it
    }
    return StoreUser(
        pid=int(worker.pid),
        driver=int(worker.worker_type) == _DRIVER,
        owned=int(worker.num_owned_objects),
        owned_bytes=sum(size for size, owned in sizes.values() if owned),
        borrowed_bytes=sum(size for size, owned in sizes.values() if not owned),
        actors=int(worker.num_owned_actors),
    )


def _references(reply: Any) -> list[tuple[str, str]]:
    return [
        (bytes(worker.worker_id).hex(), bytes(ref.object_id).hex())
        for worker in reply.core_workers_stats
        for ref in worker.object_refs
    ]


def _try_out(reply: Any) -> None:
    reply.core_workers_stats.add().object_refs.add()
    _store(reply, detail=True)
    _references(reply)
