"""A Ray cluster of several nodes on this machine, each with a home of its own, as a cluster's owner sets it up."""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typing_extensions import Self

from tests.unlisted_cluster import unlisted_cluster

if TYPE_CHECKING:
    from ray.cluster_utils import Cluster

PLUGINS = json.dumps([{"class": "rayguard.cluster.plugin.RayguardPlugin"}])
DRIVER_HOOK = "rayguard.cluster.driver.prepare"
# A node that is gone is given up in about 2 s instead of 14.
_FAST_HEALTH = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 500,
    "health_check_failure_threshold": 4,
}
_STORE_BYTES = 200 << 20
_CPUS = 5  # as Ray counts them: room for the jobs on two nodes, and on one when the other is drained


@dataclass
class Stage:
    """``with Stage(folder, nodes=3) as stage``: ``stage.address`` is the cluster's, ``stage.homes`` by node."""

    folder: Path
    nodes: int = 3
    environment: dict[str, str] = field(default_factory=dict)  # of every node
    last_node: dict[str, Any] = field(default_factory=dict)  # how `add` makes it
    homes: list[Path] = field(default_factory=list)
    made: list[Any] = field(default_factory=list)  # its nodes, in the order of their homes
    cluster: Cluster | None = None

    @property
    def address(self) -> str:
        """Return the address that a driver connects to."""
        assert self.cluster is not None
        return str(self.cluster.address)

    @property
    def temp_folder(self) -> Path:
        """Return where Ray keeps its sessions and the file for Prometheus: no other cluster's."""
        return self.folder / "ray"

    def __enter__(self) -> Self:
        os.environ.setdefault("RAY_AUTH_MODE", "disabled")
        self.cluster = unlisted_cluster()
        self.add(_system_config=_FAST_HEALTH, temp_dir=str(self.temp_folder))
        for n in range(1, self.nodes):
            self.add(**(self.last_node if n == self.nodes - 1 else {}))
        self.cluster.wait_for_nodes()
        return self

    def __exit__(self, *_: object) -> None:
        assert self.cluster is not None
        self.cluster.shutdown()

    def add(self, *, more: dict[str, str] | None = None, **options: Any) -> Any:
        """Add a node with a home of its own."""
        assert self.cluster is not None
        home = self.folder / f"node{len(self.homes)}"
        home.mkdir(mode=0o700, parents=True)
        self.homes.append(home)
        node = self.cluster.add_node(
            object_store_memory=_STORE_BYTES,
            include_dashboard=False,
            env_vars=self.node_environment(home, more),
            **{"num_cpus": _CPUS, **options},
        )
        self.made.append(node)
        return node

    def node_environment(self, home: Path, more: dict[str, str] | None = None) -> dict[str, str]:
        """Return what the owner of a cluster sets where a node is started."""
        return {
            "RAY_RUNTIME_ENV_PLUGINS": PLUGINS,
            "RAY_AUTH_MODE": "disabled",
            "RAYGUARD_HOME": str(home),
            "PYTHONPATH": os.pathsep.join(filter(None, [str(Path.cwd()), os.environ.get("PYTHONPATH", "")])),
            **self.environment,
            **(more or {}),
        }


def new_folder() -> Path:
    """Return a new folder that only its owner can read."""
    return Path(tempfile.mkdtemp(prefix="rayguard-cluster-"))
