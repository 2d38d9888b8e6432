"""The Ray nodes that run on this machine: their raylets, as their command lines and their GCS describe them.

Found from outside, so that it works without being connected to Ray; starts and joins no cluster. One look at
``/proc`` costs 5-60 ms, one question to the GCS 3 ms (and loads Ray): both are asked once, not each time.
"""

from __future__ import annotations

import json
import os
import re
import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rayguard.ray_internals.gcs_tables import raylet_of
from rayguard.ray_internals.worker import connected_ray

if TYPE_CHECKING:
    from collections.abc import Mapping

_PROC = Path("/proc")
_SHM = "/dev/shm"  # noqa: S108 - where Ray puts its store unless told otherwise
_DEADLINE_S = 0.5
_OPTION = re.compile(r"--([\w-]+)=(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class RayNode:
    """One raylet, and what it was started with. ``environment`` is empty where another user runs it."""

    pid: int
    node_id: str
    gcs_address: str
    session_dir: str = ""
    spill_dirs: tuple[str, ...] = ()
    shm_dir: str = _SHM
    store_bytes: int = 0
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Registered:
    """What the GCS knows of a node: where its raylet listens, and the cluster's settings."""

    address: str
    system_config: Mapping[str, Any] = field(default_factory=dict)

    @property
    def spill_dirs(self) -> tuple[str, ...]:
        """Where objects are spilled to, as far as these are directories."""
        try:
            params = json.loads(self.system_config.get("object_spilling_config") or "{}").get("params", {})
            found = params.get("directory_path", ())
        except (ValueError, AttributeError, TypeError):
            return ()
        return (found,) if isinstance(found, str) else tuple(map(str, found))


def ray_nodes(proc: Path = _PROC) -> tuple[RayNode, ...]:
    """Return the raylets of this machine (of this container) that can be seen, by pid."""
    pids = sorted(int(entry.name) for entry in proc.iterdir() if entry.name.isdecimal())
    return tuple(node for pid in pids if (node := _ray_node(proc / str(pid))) is not None)


def own_ray_node(proc: Path = _PROC) -> RayNode | None:
    """Return the raylet that this process belongs to; None outside of Ray.

    A worker has its raylet's pid in its environment; a driver is connected to it.
    """
    pid = os.environ.get("RAY_RAYLET_PID", "")
    if pid.isdecimal() and (node := _ray_node(proc / pid)) is not None:
        return node
    ray = connected_ray()
    if ray is None:
        return None
    node_id = ray.get_runtime_context().get_node_id()
    return next((node for node in ray_nodes(proc) if node.node_id == node_id), None)


def registered(node: RayNode) -> Registered | None:
    """Ask the GCS about ``node``; None when it does not know it, or does not answer. Loads Ray."""
    if not _listens(node.gcs_address):  # Ray's own client would try for many seconds
        return None
    found = raylet_of(node.gcs_address, node.node_id)
    return None if found is None else Registered(address=found[0], system_config=found[1])


def _listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_DEADLINE_S).close()
    except (OSError, ValueError):
        return False
    return True


def _ray_node(directory: Path) -> RayNode | None:
    try:
        arguments = (directory / "cmdline").read_bytes().decode("utf-8", "replace").split("\0")
    except OSError:
        return None
    if Path(arguments[0]).name != "raylet":
        return None
    options = {match[1]: match[2] for match in map(_OPTION.fullmatch, arguments) if match}
    if "node_id" not in options or "gcs-address" not in options:
        return None
    store_bytes = options.get("object_store_memory", "")
    return RayNode(
        pid=int(directory.name),
        node_id=options["node_id"],
        gcs_address=options["gcs-address"],
        session_dir=options.get("session_dir", ""),
        spill_dirs=tuple(filter(None, [options.get("fallback_directory", "")])),
        shm_dir=options.get("plasma_directory") or _SHM,
        store_bytes=int(store_bytes) if store_bytes.isdecimal() else 0,
        environment=_environment(directory),
    )


def _environment(directory: Path) -> dict[str, str]:
    try:
        pairs = (directory / "environ").read_bytes().decode("utf-8", "replace").split("\0")
    except OSError:
        return {}
    return {
        name: value for name, _, value in (pair.partition("=") for pair in pairs) if name.startswith("RAY_")
    }
