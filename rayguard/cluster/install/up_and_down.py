"""Rayguard onto a cluster and off it again, told node by node: for ``rayguard up`` and ``down``.

Needs a connected Ray. Making and removing is ``rayguard.cluster.install.installation``; here is what came of
it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypedDict

from rayguard.cluster.actor_names import AGENT, AGENT_KEY
from rayguard.cluster.agent import state_files
from rayguard.cluster.install import installation
from rayguard.cluster.install.spawn_installer import Installed
from rayguard.cluster.view import survey
from rayguard.metrics.node import discovery
from rayguard.ray_internals import kv
from rayguard.ray_internals.worker import temp_folder

if TYPE_CHECKING:
    from collections.abc import Mapping


class NodeInstalled(TypedDict):
    """What came of one node: "installed", "there", "replaced" (``was``: the version before) or "failed"."""

    node_id: str
    host: str
    what: str
    why: str
    version: str
    url: str
    was: str
    plugin: bool | None  # None: it did not say


class ClusterInstalled(TypedDict):
    """What came of all nodes, and what else is there to know."""

    version: str
    nodes: list[NodeInstalled]
    jobs: list[dict[str, Any]]  # as ``survey`` has them
    discovery: str


def install() -> ClusterInstalled:
    """Have an agent on each node; return, as plain JSON, what came of it."""
    before = kv.records(AGENT_KEY)
    living = set(installation.agents())
    every = installation.ensure_agents()
    found = {one.name.removeprefix(AGENT): one for one in every if one.name.startswith(AGENT)}
    cluster = survey.ask(pages=False)
    rows = []
    for node in cluster["nodes"]:
        if not node["alive"]:
            continue
        name, was = node["id"], before.get(node["id"], {}) if node["id"] in living else {}
        one = found.get(name) or Installed(name=name, why="it has none")
        what = what_came(one.version, one.why, was)
        row: NodeInstalled = {
            "node_id": name,
            "host": node["host"] or node["address"],
            "what": what,
            "why": one.why,
            "version": one.version,
            "url": one.url,
            "was": was.get("version", "") if what == "replaced" else "",
            "plugin": (cluster["agents"].get(name, {}).get("readings") or {}).get("plugin"),
        }
        rows.append(row)
    return {
        "version": state_files.version(),
        "nodes": rows,
        "jobs": [job for job in cluster["jobs"] if job["running"]],
        "discovery": str(temp_folder() / discovery.FILE),
    }


def what_came(version: str, why: str, was: Mapping[str, object]) -> str:
    """Return what came of an installation: ``was`` is what the node's agent said before, if it had one."""
    if why:
        return "failed"
    if not was:
        return "installed"
    return "there" if was.get("version") == version else "replaced"
