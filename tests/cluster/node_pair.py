"""Two light Ray nodes on this machine, each with a rayguard home of its own, and waiting."""

import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

STORE_BYTES = 80 << 20
WAIT_S = 150  # for a busy machine: a deadline, no measure


def until(condition, wait_s=WAIT_S):
    """Wait until ``condition()`` is true, and return what it returned."""
    pause = threading.Event()
    for _ in range(int(wait_s * 20)):
        if found := condition():
            return found
        pause.wait(0.05)
    raise AssertionError(f"not in {wait_s} s: {condition}")


@dataclass
class TwoNodes:
    """The cluster: ``head`` and ``other`` are node ids; ``homes`` says where each node keeps its state."""

    cluster: Any
    folder: Path
    homes: dict[str, Path] = field(default_factory=dict)
    nodes: dict[str, Any] = field(default_factory=dict)

    @property
    def address(self):
        return self.cluster.address

    @property
    def head(self):
        return next(iter(self.homes))

    @property
    def other(self):
        return list(self.homes)[1]

    def add(self, **options):
        """Start a node with a home of its own; return its node id."""
        home = self.folder / f"home-{len(self.homes)}"
        environment = {"RAYGUARD_HOME": str(home), **options.pop("env_vars", {})}
        arguments = {"num_cpus": 1, "object_store_memory": STORE_BYTES, **options}
        node = self.cluster.add_node(env_vars=environment, **arguments)
        self.homes[node.node_id], self.nodes[node.node_id] = home, node
        return node.node_id

    def remove(self, node_id, *, graceful=True):
        """End a node; its home stays on the disk."""
        self.cluster.remove_node(self.nodes.pop(node_id), allow_graceful=graceful)
        del self.homes[node_id]

    def on(self, node_id):
        """Return the options that put an actor or a task onto that node."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        return {"scheduling_strategy": NodeAffinitySchedulingStrategy(node_id, soft=False)}

    def incidents(self, node_id):
        """Return the incidents of a node's journal, each in its last state."""
        from rayguard.recovery.journal import Journal

        return Journal(self.homes[node_id]).read()
