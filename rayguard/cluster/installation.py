"""Agents and supervisors of rayguard: put onto a cluster, found there, and taken away to the last trace.

They are detached actors, which outlive the job that made them, and a job hands its runtime environment down
to what it makes: they are made by a job that has none. Where the calling process has one, another process
makes them (``rayguard.cluster.installer``), one at a time on each node.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rayguard.cluster import agent_marker, agent_ray, installer
from rayguard.cluster.agent_ray import OURS
from rayguard.home import home
from rayguard.private import open_private
from rayguard.recovery.harmless import harmless

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

AGENT, SUPERVISOR = "rayguard:agent:", "rayguard:supervisor:"
AGENT_KEY, SUPERVISOR_KEY = "agent:", "supervisor:"
KEYS = (AGENT_KEY, SUPERVISOR_KEY, "supervisor-state:", "agent-tried:", "quarantine:")
_INSTALL_S = 60.0
_STOP_S = 10.0
_PASSES = 5
_AGAIN_S = 600.0  # after an installation that failed


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """One agent or supervisor. ``why`` says what went wrong; empty where it answers."""

    name: str
    version: str = ""
    pid: int = 0
    url: str = ""
    why: str = ""


def ensure_agents(settings: Mapping[str, str] | None = None) -> list[Installed]:
    """Have an agent of this rayguard on each living node, and return them. Needs a connected Ray.

    ``settings`` are ``RAYGUARD_...`` variables for new agents; without one, those of their node count. What
    goes wrong with one node is told in its ``Installed``. All are asked at once: about two minutes at most.
    """
    if not _can_create():
        return _elsewhere("agents", json.dumps(dict(settings or {})))
    nodes = [row["NodeID"] for row in _alive()]
    create_agents(nodes, settings or {})
    return _answered([f"{AGENT}{node}" for node in nodes], dict(settings or {}))


def ensure_agent_here(deadline_s: float = _INSTALL_S) -> bool:
    """Have an agent on this process's node; say whether there is one, as far as is known. Never raises.

    Costs two reads of files where there is one. Blocks until ``deadline_s`` where one has to be made: call it
    aside. Of many processes that ask at once, one goes to work; the others return.
    """
    with harmless("installation"):
        import ray  # noqa: PLC0415 - only where Ray runs

        node_id = ray.get_runtime_context().get_node_id()
        if agent_marker.there(home(), node_id, agent_marker.version()):
            return True
        with _alone() as alone:
            return alone and _ensured_here(node_id, deadline_s)
    return False


def _ensured_here(node_id: str, deadline_s: float) -> bool:
    if agent_marker.there(home(), node_id, agent_marker.version()):  # made while we waited for the lock
        return True
    line = agent_ray.said(f"{AGENT_KEY}{node_id}").get("", {})
    if line.get("version") == agent_marker.version():
        return True
    tried = agent_marker.load(home(), f"{node_id}.tried.json") or {}
    if (
        time.time() - float(tried.get("at", 0.0)) < _AGAIN_S
        and tried.get("version") == agent_marker.version()
    ):
        return bool(line)
    agent_marker.save(home(), f"{node_id}.tried.json", {"at": time.time(), "version": agent_marker.version()})
    found = _elsewhere("agents", "{}", deadline_s=deadline_s)
    return any(one.name == f"{AGENT}{node_id}" and not one.why for one in found)


def ensure_supervisor(job_id: str) -> Installed:
    """Have a supervisor for the job. Needs a connected Ray.

    Raises:
        ImportError: This rayguard has no supervisor.
    """
    name = f"{SUPERVISOR}{job_id}"
    if not _can_create():
        found = _elsewhere("supervisor", job_id)
        return found[0] if found else Installed(name=name, why="it could not be made: see the log")
    create_supervisor(job_id)
    return _answered([name], {})[0]


def create_agents(nodes: Iterable[str], settings: Mapping[str, str]) -> None:
    """Create the agents of ``nodes`` where there is none, and wait for nothing."""
    import ray  # noqa: PLC0415 - only where Ray runs

    from rayguard.cluster.agent import NodeAgent  # noqa: PLC0415 - it imports this module

    actor = ray.remote(NodeAgent)
    for node_id in nodes:
        with harmless("installation"):
            strategy = _on(node_id, soft=False)
            actor.options(name=f"{AGENT}{node_id}", scheduling_strategy=strategy, **_OPTIONS).remote(
                node_id, dict(settings)
            )


def create_supervisor(job_id: str) -> None:
    """Create the supervisor of a job where there is none, on the head node where that has room."""
    import ray  # noqa: PLC0415 - only where Ray runs

    from rayguard.cluster.supervisor import Supervisor  # noqa: PLC0415 - loads Ray

    head = next(row["NodeID"] for row in _alive() if "node:__internal_head__" in row.get("Resources", {}))
    options = {"scheduling_strategy": _on(head, soft=True), **_OPTIONS}
    ray.remote(Supervisor).options(name=f"{SUPERVISOR}{job_id}", **options).remote(job_id)


def agents() -> dict[str, Any]:
    """Return the handles of all agents by node id."""
    return _handles(AGENT)


def supervisors() -> dict[str, Any]:
    """Return the handles of all supervisors by job id."""
    return _handles(SUPERVISOR)


def remove_all() -> list[str]:
    """End all agents and supervisors and remove what they left but the journals; return their names.

    They are asked to clean up first; who does not answer in ten seconds is ended as it is.
    """
    removed: list[str] = []
    for _ in range(_PASSES):  # an agent that was asked last may have made one anew
        there = {f"{SUPERVISOR}{key}": one for key, one in supervisors().items()}
        there |= {f"{AGENT}{key}": one for key, one in agents().items()}
        if not there:
            break
        _end(there)
        removed += there
    for prefix in KEYS:
        with harmless("installation"):
            for key in agent_ray.keys(prefix):
                agent_ray.unsay(key)
    return sorted(set(removed))


def _answered(names: list[str], settings: dict[str, str], *, again: bool = True) -> list[Installed]:
    """Ask actors who they are; replace once those that are of another rayguard."""
    import ray  # noqa: PLC0415 - only where Ray runs

    mine, until = agent_marker.version(), time.monotonic() + _INSTALL_S
    found: dict[str, Installed] = {}
    asked: dict[str, tuple[Any, Any]] = {}
    for name in names:
        with _told(found, name):
            handle = ray.get_actor(name, namespace=OURS)
            asked[name] = handle, handle.hello.remote()
    old = {}
    for name, (handle, answer) in asked.items():
        with _told(found, name):
            said = ray.get(answer, timeout=max(1.0, until - time.monotonic()))
            same = said["version"] == mine
            why = "" if same else f"it runs rayguard {said['version']}, and this is {mine}"
            found[name] = Installed(
                name=name, version=said["version"], pid=said["pid"], url=said.get("url", ""), why=why
            )
            if not same and again and not _tried(name):
                old[name] = handle
    if old:
        _end(old)
        keys = {name: name.rpartition(":")[2] for name in old}
        create_agents([key for name, key in keys.items() if name.startswith(AGENT)], settings)
        for key in [key for name, key in keys.items() if name.startswith(SUPERVISOR)]:
            create_supervisor(key)
        found |= {one.name: one for one in _answered(list(old), settings, again=False)}
    return [found[name] for name in names]


@contextlib.contextmanager
def _told(found: dict[str, Installed], name: str) -> Iterator[None]:
    """Note what goes wrong with one of many."""
    import ray  # noqa: PLC0415 - only where Ray runs

    try:
        yield
    except (ray.exceptions.RayError, ValueError) as error:
        why = str(error).strip().partition("\n")[0][:300] or repr(error)
        found[name] = Installed(name=name, why=why)


def _end(actors: Mapping[str, Any]) -> None:
    """Ask actors to clean up, end them whether they answer or not, and wait until their names are free."""
    import ray  # noqa: PLC0415 - only where Ray runs

    asked = [one.stop.remote() for one in actors.values()]
    ray.wait(asked, num_returns=len(asked), timeout=_STOP_S)
    for one in actors.values():
        with contextlib.suppress(Exception):  # it is gone already
            ray.kill(one, no_restart=True)
    _wait_until_gone(actors)


def _tried(name: str) -> bool:
    """Say whether an actor was replaced for this version before: its node has another one installed."""
    key = f"agent-tried:{name}:{agent_marker.version()}"
    if agent_ray.keys(key):
        return True
    agent_ray.say(key, {"at": time.time()})
    return False


def _wait_until_gone(names: Iterable[str]) -> None:
    import threading  # noqa: PLC0415

    pause, until = threading.Event(), time.monotonic() + _STOP_S
    while set(names) & set(_names("")) and time.monotonic() < until:
        pause.wait(0.05)


def _handles(prefix: str) -> dict[str, Any]:
    import ray  # noqa: PLC0415 - only where Ray runs

    found = {}
    for name in _names(prefix):
        with contextlib.suppress(ValueError):  # it went just now
            found[name.removeprefix(prefix)] = ray.get_actor(name, namespace=OURS)
    return found


def _names(prefix: str) -> list[str]:
    from ray.util import list_named_actors  # noqa: PLC0415 - only where Ray runs

    every = list_named_actors(all_namespaces=True)
    return [one["name"] for one in every if one["namespace"] == OURS and one["name"].startswith(prefix)]


_OPTIONS: dict[str, Any] = {
    "namespace": OURS,
    "lifetime": "detached",
    "get_if_exists": True,
    "num_cpus": 0,
    "max_restarts": -1,
    "max_task_retries": -1,
}


def _on(node_id: str, *, soft: bool) -> Any:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy  # noqa: PLC0415

    return NodeAffinitySchedulingStrategy(node_id, soft=soft)


def _alive() -> list[dict[str, Any]]:
    import ray  # noqa: PLC0415 - only where Ray runs

    return [row for row in ray.nodes() if row["Alive"]]


def _can_create() -> bool:
    """Say whether what this process makes inherits nothing: no runtime environment, and no user's worker."""
    import ray  # noqa: PLC0415 - only where Ray runs

    context = ray.get_runtime_context()
    return not context.runtime_env and (not context.get_actor_id() or context.namespace == OURS)


@contextlib.contextmanager
def _alone() -> Iterator[bool]:
    """Hold the node's lock for installations; False where another process has it."""
    folder = open_private(home() / "agents")
    try:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        lock = os.open("install.lock", flags, 0o600, dir_fd=folder)
    finally:
        os.close(folder)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            alone = False
        else:
            alone = True
        yield alone
    finally:
        os.close(lock)


def _elsewhere(*what: str, deadline_s: float = 2 * _INSTALL_S) -> list[Installed]:
    return [Installed(**one) for one in installer.run(*what, deadline_s=deadline_s)]
