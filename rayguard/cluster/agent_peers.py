"""The agents of the other nodes, as the one of this node sees them: where they serve, and nodes without one.

The agent with the smallest node id installs agents on nodes that joined and forgets those of nodes that are
gone; the one on the head node tells Prometheus where all are. Each agent says where it is by a line in the
cluster's table of names, which this file reads every few seconds.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rayguard.cluster import agent_ray, installation
from rayguard.config import Settings
from rayguard.metrics import discovery
from rayguard.metrics.discovery import Target

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rayguard.cluster.agent_ray import ClusterOfAgent

EVERY_S = 5.0
LEAVE_S = 3.0  # without work, on a node that will go
_RARELY_S = 300.0  # on a node without rayguard each agent dies as it starts
_MORE_S = 0.02  # for each node of the cluster: all agents together ask the head this often


class Peers:
    """What this agent knows of the others."""

    def __init__(self, cluster: ClusterOfAgent, settings: Mapping[str, str]) -> None:
        self._cluster, self._settings = cluster, settings
        self._targets: list[Target] = []
        self._file: Path | None = None
        self._head = True  # until it is known better
        self._stay_s = Settings().agent_idle_s
        self._tried: dict[str, tuple[float, float]] = {}  # nodes without one: when again, after how long
        self.every_s = EVERY_S

    def targets(self) -> list[Target]:
        """Return the endpoints of all nodes, as of the last look."""
        return self._targets

    def look(self, hello: dict[str, Any]) -> None:
        """Say who this agent is, look who else is there, and do what falls to this one."""
        nodes = self._cluster.nodes()
        here = self._cluster.node_id
        self.every_s = EVERY_S + _MORE_S * len(nodes)
        told = agent_ray.said(installation.AGENT_KEY)
        if told.get(here) != hello:
            agent_ray.say(f"{installation.AGENT_KEY}{here}", hello)
            told[here] = hello
        self._targets = targets({node: line for node, line in told.items() if node in nodes})
        if leads(here, nodes, told):
            for gone in told.keys() - nodes.keys():
                agent_ray.unsay(f"{installation.AGENT_KEY}{gone}")
            self._bring({node for node in nodes if node not in told})
        self._head = nodes.get(here, False)
        if self._head:
            self._file = _temp_folder() / discovery.FILE
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
            installation.create_agents(due, self._settings)

    def forget(self) -> None:
        """Take away what this agent told others."""
        agent_ray.unsay(f"{installation.AGENT_KEY}{self._cluster.node_id}")
        if self._file is not None:
            discovery.remove(self._file)


def leads(here: str, nodes: Mapping[str, Any], told: Mapping[str, Any]) -> bool:
    """Say whether the agent of ``here`` looks after nodes without one: it has the smallest id."""
    return here == min((node for node in nodes if node in told), default=here)


def targets(told: Mapping[str, Mapping[str, Any]]) -> list[Target]:
    """Return where the agents that said so serve, by node id."""
    return [Target(str(told[node]["address"])) for node in sorted(told) if told[node].get("address")]


def _temp_folder() -> Path:
    from ray._private import worker  # noqa: PLC0415 - only where Ray runs

    return Path(worker._global_node.get_temp_dir_path())  # noqa: SLF001
