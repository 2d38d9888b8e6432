"""Rayguard onto a cluster and off it again, told node by node: for ``rayguard up`` and ``down``.

Needs a connected Ray. Making and removing is ``rayguard.cluster.installation``; here is what came of it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rayguard.cluster import agent_marker, agent_ray, asking, installation
from rayguard.metrics import discovery

if TYPE_CHECKING:
    from collections.abc import Mapping


def install() -> dict[str, Any]:
    """Have an agent on each node; return, as plain JSON, what came of it and what else is there to know.

    A node's ``what`` is "installed", "there", "replaced" (``was``: the version before) or "failed" (``why``).
    """
    before = agent_ray.said(installation.AGENT_KEY)
    living = set(installation.agents())
    found = {
        one.name.removeprefix(installation.AGENT): one
        for one in installation.ensure_agents()
        if one.name.startswith(installation.AGENT)
    }
    cluster = asking.ask(pages=False)
    hosts = {node["id"]: node["host"] or node["address"] for node in cluster["nodes"]}
    rows = []
    for node in [one["id"] for one in cluster["nodes"] if one["alive"]]:
        one, was = found.get(node), before.get(node, {}) if node in living else {}
        row: dict[str, Any] = {"node_id": node, "host": hosts[node], "what": "failed", "why": "it has none"}
        if one is not None:
            row |= {
                "what": what_came(one.version, one.why, was),
                "why": one.why,
                "version": one.version,
                "url": one.url,
            }
            row |= {"was": was.get("version", "") if row["what"] == "replaced" else ""}
        row["plugin"] = (cluster["agents"].get(node, {}).get("readings") or {}).get("plugin")
        rows.append(row)
    return {
        "version": agent_marker.version(),
        "nodes": rows,
        "jobs": [job for job in cluster["jobs"] if job["running"]],
        "discovery": str(Path(_temp_folder()) / discovery.FILE),
    }


def there() -> list[str]:
    """Return the names of all agents and supervisors."""
    agents = (f"{installation.AGENT}{node}" for node in installation.agents())
    supervisors = (f"{installation.SUPERVISOR}{job}" for job in installation.supervisors())
    return sorted((*agents, *supervisors))


def remove() -> list[str]:
    """Take all agents and supervisors away; return their names."""
    return installation.remove_all()


def what_came(version: str, why: str, was: Mapping[str, Any]) -> str:
    """Return what came of an installation: ``was`` is what the node's agent said before, if it had one."""
    if why:
        return "failed"
    if not was:
        return "installed"
    return "there" if was.get("version") == version else "replaced"


def _temp_folder() -> str:
    from ray._private import worker  # noqa: PLC0415 - only where Ray runs

    return str(worker._global_node.get_temp_dir_path())  # noqa: SLF001
