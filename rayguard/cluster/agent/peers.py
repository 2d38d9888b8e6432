"""The agents of the other nodes, as the one of this node sees them: where they serve, and nodes without one.

The agent with the smallest node id installs agents on nodes that joined and forgets those of nodes that are
gone; the one on the head node tells Prometheus where all are. Each agent says where it is by a line in the
cluster's table of names, which this file reads every few seconds.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rayguard.cluster import create_actors
from rayguard.cluster.actor_names import AGENT_KEY
from rayguard.config import Settings
from rayguard.metrics.node import discovery
from rayguard.metrics.node.discovery import Target
from rayguard.ray_internals import kv
from rayguard.ray_internals.worker import temp_folder

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping
    from pathlib import Path

    from rayguard.ray_internals.cluster_state import ClusterOfAgent

EVERY_S = 5.0
LEAVE_S = 3.0  # without work, on a node that will go
_RARELY_S = 300.0  # on a node without rayguard each agent dies as it starts
_MORE_S = 0.02  # for each node of the cluster: all agents together ask the head this often


class Peers:
    """What this agent knows of the others. ``agent_class``: whose actors it makes where there is none."""

    def __init__(self, cluster: ClusterOfAgent, agent_class: type) -> None:
        self._cluster, self._agent_class = cluster, agent_class
        self._targets: list[Target] = []
        self._file: Path | None = None
        self._head = True  # until it is known better
        self._stay_s = Settings().agent_idle_s
        self._tried: dict[str, tuple[float, float]] = {}  # nodes without one: when again, after how long
        self.every_s = EVERY_S

    def targets(self) -> list[Target]:
        """Return the endpoints of all nodes, as of the last look."""
        return self._targets

    def look(self, hello: dict[str, object]) -> None:
        """Say who this agent is, look who else is there, and do what falls to this one."""
        nodes = self._cluster.nodes()
        mine = self._cluster.node_id
        self.every_s = EVERY_S + _MORE_S * len(nodes)
        agents = kv.records(AGENT_KEY)
        if agents.get(mine) != hello:
            kv.put_record(f"{AGENT_KEY}{mine}", hello)
            agents[mine] = hello
        self._targets = targets({node: line for node, line in agents.items() if node in nodes})
        if leads(mine, nodes, agents):
            for dead in agents.keys() - nodes.keys():
                kv.delete(f"{AGENT_KEY}{dead}")
            self._bring({node for node in nodes if node not in agents})
        self._head = nodes.get(mine, False)
        if self._head:
            self._file = temp_folder() / discovery.FILE
            discovery.write(self._file, self._targets)

    def should_leave(self, idle_s: float) -> bool:
        """Say whether the agent has to go, its node having had no work for ``idle_s`` seconds.

        A node with an actor on it, even one that takes no CPU, is not idle for Ray: it would not end when it
        is drained, and the autoscaler would never take it back.
        """
        if idle_s < LEAVE_S:
            return False
        if self._cluster.node_id in self._cluster.draining():
            return True
        return not self._head and bool(self._stay_s) and idle_s >= self._stay_s

    def _bring(self, missing: set[str]) -> None:
        """Install agents where there is none and one may be: not where it had to leave."""
        if missing:
            missing -= self._cluster.draining()
        if missing and self._stay_s:
            missing &= self._cluster.in_use()
        now, before = time.monotonic(), self._tried
        self._tried = {node: before.get(node, (now, EVERY_S / 2)) for node in missing}
        due = sorted(node for node, (at, _) in self._tried.items() if at <= now)
        for node in due:
            wait_s = min(_RARELY_S, 2 * self._tried[node][1])
            self._tried[node] = now + wait_s, wait_s
        if due:
            create_actors.create_agents(self._agent_class, due)

    def forget(self) -> None:
        """Take away what this agent told others."""
        kv.delete(f"{AGENT_KEY}{self._cluster.node_id}")
        if self._file is not None:
            self._file.unlink(missing_ok=True)


def leads(node_id: str, nodes: Container[str], agents: Iterable[str]) -> bool:
    """Say whether the agent of ``node_id`` looks after nodes without one: it has the smallest id."""
    return node_id == min((node for node in agents if node in nodes), default=node_id)


def targets(agents: Mapping[str, Mapping[str, object]]) -> list[Target]:
    """Return where the agents that said so serve, by node id."""
    return [Target(str(agents[node]["address"])) for node in sorted(agents) if agents[node].get("address")]
