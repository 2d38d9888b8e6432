"""Ray's object store on one node, asked from its raylet: how full, and which process refers to how much.

A gRPC channel for each question, 2-3 ms of CPU: beside one that stays open, a few in 10,000 of the processes
that the user starts with ``preexec_fn`` abort before their program begins (gRPC's fork handlers). Every
question has a deadline; a cluster that has ended, or Ray without its gRPC parts (``ray[default]``), is a
missing reading.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

DEADLINE_S = 0.5
_MAX_MESSAGE_BYTES = 512 << 20  # as Ray's own clients allow
_BORROWED = 0  # the task status of a reference that its holder does not own


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreUser:
    """One Ray worker or driver. ``owned_bytes`` and ``borrowed_bytes`` are 0 unless asked for with detail."""

    pid: int
    driver: bool = False
    owned: int = 0  # objects, the small ones outside of the store too
    owned_bytes: int = 0
    borrowed_bytes: int = 0
    actors: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreMemory:
    """Bytes of the object store of a node."""

    used: int
    capacity: int
    primary: int = 0  # of ``used``: the copies that cannot be dropped
    fallback: int = 0  # on disk, because the store was full
    spilled_total: int = 0  # written to disk since the raylet's start
    objects: int = 0
    users: tuple[StoreUser, ...] = ()


class StoreProbe:
    """Asks the raylet at ``address`` (host:port)."""

    def __init__(self, address: str, *, deadline_s: float = DEADLINE_S) -> None:
        self.address = address
        self._deadline_s = deadline_s

    def read(self, *, detail: bool = False) -> StoreMemory | None:
        """Return the store's state; None when the raylet does not answer in time.

        Raises:
            ImportError: Ray is not installed with its gRPC parts.
        """
        reply = self._ask(detail=detail)
        return None if reply is None else _store(reply, detail=detail)

    def references(self) -> list[tuple[str, str]] | None:
        """Return (worker id, object id), in hex, of all that the node's workers refer to; None: no answer.

        Raises:
            ImportError: As ``read``.
        """
        reply = self._ask(detail=True)
        if reply is None:
            return None
        return [
            (bytes(stats.worker_id).hex(), bytes(ref.object_id).hex())
            for stats in reply.core_workers_stats
            for ref in stats.object_refs
        ]

    def _ask(self, *, detail: bool) -> Any | None:
        from ray._private.grpc_utils import grpc, init_grpc_channel  # noqa: PLC0415 - adds the cluster's token
        from ray.core.generated import node_manager_pb2, node_manager_pb2_grpc  # noqa: PLC0415

        options = [("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES)]
        try:
            with init_grpc_channel(self.address, options=options) as channel:
                return node_manager_pb2_grpc.NodeManagerServiceStub(channel).GetNodeStats(
                    node_manager_pb2.GetNodeStatsRequest(include_memory_info=detail), timeout=self._deadline_s
                )
        except grpc.RpcError:
            return None


def _store(reply: Any, *, detail: bool) -> StoreMemory:
    stats = reply.store_stats
    return StoreMemory(
        used=int(stats.object_store_bytes_used),
        capacity=int(stats.object_store_bytes_avail),
        primary=int(stats.object_store_bytes_primary_copy),
        fallback=int(stats.object_store_bytes_fallback),
        spilled_total=int(stats.spilled_bytes_total),
        objects=int(stats.num_local_objects),
        users=tuple(map(_user, reply.core_workers_stats)) if detail else (),
    )


def _user(stats: Any) -> StoreUser:
    # An object can be listed by several names (a return value, and its references inside): count it once.
    sizes = {
        bytes(ref.object_id): (int(ref.object_size), int(ref.task_status) != _BORROWED)
        for ref in stats.object_refs
        if ref.object_size > 0
    }
    return StoreUser(
        pid=int(stats.pid),
        driver=int(stats.worker_type) == 1,
        owned=int(stats.num_owned_objects),
        owned_bytes=sum(size for size, owned in sizes.values() if owned),
        borrowed_bytes=sum(size for size, owned in sizes.values() if not owned),
        actors=int(stats.num_owned_actors),
    )
