"""Ray's object store on one node, asked from its raylet: how full, and which process refers to how much.

One kept gRPC channel: 0.9 ms an answer, 1.0-10 ms with ``detail`` (10,000 references). Every question has a
deadline; a cluster that has ended, or Ray without its gRPC parts (``ray[default]``), is a missing reading.
"""

from __future__ import annotations

import os
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
    """Asks the raylet at ``address`` (host:port); keeps the channel until ``close``, also over a fork."""

    def __init__(self, address: str, *, deadline_s: float = DEADLINE_S) -> None:
        self.address = address
        self._deadline_s = deadline_s
        self._channel: Any = None
        self._stub: Any = None
        self._opened_by = 0

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
        from ray._private.grpc_utils import grpc  # noqa: PLC0415 - Ray is loaded by those who have a raylet
        from ray.core.generated import node_manager_pb2  # noqa: PLC0415

        if self._stub is None or self._opened_by != os.getpid():  # a channel does not survive a fork
            self._open()
        try:
            return self._stub.GetNodeStats(
                node_manager_pb2.GetNodeStatsRequest(include_memory_info=detail), timeout=self._deadline_s
            )
        except grpc.RpcError:
            return None

    def close(self) -> None:
        """End the channel; a later read opens another one."""
        channel, self._channel, self._stub = self._channel, None, None
        if channel is not None and self._opened_by == os.getpid():
            channel.close()

    def _open(self) -> None:
        from ray._private.grpc_utils import init_grpc_channel  # noqa: PLC0415 - it adds the cluster's token
        from ray.core.generated import node_manager_pb2_grpc  # noqa: PLC0415

        self._channel = init_grpc_channel(
            self.address, options=[("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES)]
        )
        self._stub = node_manager_pb2_grpc.NodeManagerServiceStub(self._channel)
        self._opened_by = os.getpid()


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
