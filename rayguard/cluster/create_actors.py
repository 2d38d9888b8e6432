"""Agents and supervisors made by their class: detached actors, which outlive the job that made them.

The class is handed in: an agent makes agents on other nodes, and what it uses must not import it. Whether one
may be made by the calling process, and whether it answers, is ``rayguard.cluster.install.installation``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rayguard.cluster.actor_names import AGENT, SUPERVISOR
from rayguard.harmless import harmless
from rayguard.ray_internals.rows import OURS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

_OPTIONS: dict[str, object] = {
    "namespace": OURS,
    "lifetime": "detached",
    "get_if_exists": True,
    "num_cpus": 0,
    "max_restarts": -1,
    "max_task_retries": -1,
}


def create_agents(actor_class: type, nodes: Iterable[str]) -> None:
    """Create the agents of ``nodes`` where there is none, and wait for nothing."""
    import ray  # noqa: PLC0415 - only where Ray runs

    actor = ray.remote(actor_class)
    for node_id in nodes:
        with harmless("installation"):
            options = {"scheduling_strategy": _on(node_id, soft=False), **_OPTIONS}
            actor.options(name=f"{AGENT}{node_id}", **options).remote(node_id)


def create_supervisor(actor_class: type, job_id: str) -> None:
    """Create the supervisor of a job where there is none, on the head node where that has room."""
    import ray  # noqa: PLC0415 - only where Ray runs

    nodes = (row for row in ray.nodes() if row["Alive"])
    head = next(row["NodeID"] for row in nodes if "node:__internal_head__" in row.get("Resources", {}))
    options = {"scheduling_strategy": _on(head, soft=True), **_OPTIONS}
    ray.remote(actor_class).options(name=f"{SUPERVISOR}{job_id}", **options).remote(job_id)


def _on(node_id: str, *, soft: bool) -> NodeAffinitySchedulingStrategy:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy  # noqa: PLC0415

    return NodeAffinitySchedulingStrategy(node_id, soft=soft)
