# ruff: noqa: D102 - verl says what its methods do
"""What rayguard uses of verl's rollouts, by the names that verl 0.9 gives them. Types alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from concurrent.futures import Future


class PlacementGroup(Protocol):
    """Places that Ray holds (ray/util/placement_group.py)."""

    bundle_specs: list[dict[str, float]]


class RayResourcePool(Protocol):
    """The places of a replica (verl/single_controller/ray/base.py)."""

    pgs: list[PlacementGroup]


class RolloutReplica(Protocol):
    """A server of rollouts, on one node or several (verl/workers/rollout/replica.py)."""

    replica_rank: int
    resource_pool: RayResourcePool
    servers: list[object]
    workers: list[object]

    @property
    def server_address(self) -> str: ...

    @property
    def server_handle(self) -> object: ...

    async def init_standalone(self) -> object: ...


class LLMServerManager(Protocol):
    """Has made replicas, and their load balancer (verl/workers/rollout/llm_server.py)."""

    rollout_replicas: list[RolloutReplica]
    server_addresses: list[str]
    server_handles: list[object]
    global_load_balancer: object


class LoadBalancer(Protocol):
    """Says which server a request goes to, within its actor (the same file)."""

    def add_servers(self, servers: Mapping[str, object]) -> object: ...

    def remove_servers(self, server_ids: list[str]) -> object: ...

    def get_all_servers(self) -> Sequence[str]: ...


class CheckpointEngineManager(Protocol):
    """Pushes weights to replicas (verl/checkpoint_engine/base.py)."""

    backend: str
    replicas: list[RolloutReplica]

    def add_replicas(self, replicas: list[RolloutReplica]) -> object: ...

    def remove_replicas(self, replicas: list[RolloutReplica]) -> object: ...


class CallReference(Protocol):
    """Ray's reference to what a call is answered by."""

    def future(self) -> Future[object]: ...


class WeightWorkers(Protocol):
    """Workers with an engine each that weights go through: verl's ``RayWorkerGroup``."""

    world_size: int

    def execute_checkpoint_engine(self, method: list[str], *args: list[object]) -> list[CallReference]: ...
