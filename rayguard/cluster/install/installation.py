"""Agents and supervisors of rayguard: put onto a cluster, found there, and taken away to the last trace.

They are detached actors, which outlive the job that made them, and a job hands its runtime environment down
to what it makes: they are made by a job that has none. Where the calling process has one, another process
makes them (``main``, started by ``rayguard.cluster.install.spawn_installer``), one at a time on each node.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import sys
import threading
import time
from dataclasses import asdict
from typing import TYPE_CHECKING

from rayguard.cluster import create_actors
from rayguard.cluster.actor_names import AGENT, AGENT_KEY, KEYS, SUPERVISOR, TRIED_KEY, ActorOfOurs
from rayguard.cluster.agent import state_files
from rayguard.cluster.install import spawn_installer
from rayguard.cluster.install.spawn_installer import Installed
from rayguard.harmless import harmless
from rayguard.home import home
from rayguard.private import open_private
from rayguard.ray_internals import kv
from rayguard.ray_internals.rows import OURS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from ray import ObjectRef


_INSTALL_S = 60.0
_STOP_S = 10.0
_PASSES = 5
_AGAIN_S = 600.0  # after an installation that failed


def ensure_agents() -> list[Installed]:
    """Have an agent of this rayguard on each living node, and return them. Needs a connected Ray.

    What goes wrong with one node is told in its ``Installed``. All are asked at once: about two minutes at
    most.
    """
    import ray  # noqa: PLC0415 - only where Ray runs

    if not _can_create():
        return spawn_installer.run("agents")
    nodes = [row["NodeID"] for row in ray.nodes() if row["Alive"]]
    _create_agents(nodes)
    return _answered([f"{AGENT}{node}" for node in nodes])


def ensure_agent_here(deadline_s: float = _INSTALL_S) -> bool:
    """Have an agent on this process's node; say whether there is one, as far as is known. Never raises.

    Costs two reads of files where there is one. Blocks until ``deadline_s`` where one has to be made: call it
    in a thread. Of many processes that ask at once, one goes to work; the others return.
    """
    with harmless("installation"):
        import ray  # noqa: PLC0415 - only where Ray runs

        node_id = ray.get_runtime_context().get_node_id()
        if state_files.agent_lives(home(), node_id, state_files.version()):
            return True
        with _only_one() as only:
            return only and _made_here(node_id, deadline_s)
    return False


def _made_here(node_id: str, deadline_s: float) -> bool:
    if state_files.agent_lives(home(), node_id, state_files.version()):  # made while we waited for the lock
        return True
    version, marker = state_files.version(), f"{node_id}.tried.json"
    line = kv.records(f"{AGENT_KEY}{node_id}").get("", {})
    if line.get("version") == version:
        return True
    tried = state_files.load(home(), marker)
    if (
        isinstance(tried, dict)
        and time.time() - float(tried.get("at", 0.0)) < _AGAIN_S
        and tried.get("version") == version
    ):
        return bool(line)
    state_files.save(home(), marker, {"at": time.time(), "version": version})
    found = spawn_installer.run("agents", deadline_s=deadline_s)
    return any(one.name == f"{AGENT}{node_id}" and not one.why for one in found)


def ensure_supervisor(job_id: str) -> Installed:
    """Have a supervisor for the job. Needs a connected Ray."""
    if not _can_create():
        return spawn_installer.run("supervisor", job_id)[0]
    _create_supervisor(job_id)
    return _answered([f"{SUPERVISOR}{job_id}"])[0]


def _create_agents(nodes: Iterable[str]) -> None:
    from rayguard.cluster.agent.node_agent import NodeAgent  # noqa: PLC0415 - loads all that an agent needs

    create_actors.create_agents(NodeAgent, nodes)


def _create_supervisor(job_id: str) -> None:
    from rayguard.cluster.supervisor.job_supervisor import Supervisor  # noqa: PLC0415 - as above

    create_actors.create_supervisor(Supervisor, job_id)


def agents() -> dict[str, ActorOfOurs]:
    """Return the handles of all agents by node id."""
    return _handles(AGENT)


def supervisors() -> dict[str, ActorOfOurs]:
    """Return the handles of all supervisors by job id."""
    return _handles(SUPERVISOR)


def remove_all() -> list[str]:
    """End all agents and supervisors and remove what they left but the journals; return their names.

    They are asked to clean up first; who does not answer in ten seconds is ended as it is.
    """
    removed: list[str] = []
    for _ in range(_PASSES):  # an agent that was asked last may have made one anew
        found = {f"{SUPERVISOR}{key}": one for key, one in supervisors().items()}
        found |= {f"{AGENT}{key}": one for key, one in agents().items()}
        if not found:
            break
        _end(found)
        removed += found
    for prefix in KEYS:
        with harmless("installation"):
            for key in kv.keys(prefix):
                kv.delete(key)
    return sorted(set(removed))


def _answered(names: list[str], *, again: bool = True) -> list[Installed]:
    """Ask actors who they are; replace once those that are of another rayguard."""
    import ray  # noqa: PLC0415 - only where Ray runs

    mine, until = state_files.version(), time.monotonic() + _INSTALL_S
    found: dict[str, Installed] = {}
    asked: dict[str, tuple[ActorOfOurs, ObjectRef]] = {}
    for name in names:
        with _noted(found, name):
            handle = ray.get_actor(name, namespace=OURS)
            asked[name] = handle, handle.hello.remote()
    old: dict[str, ActorOfOurs] = {}
    for name, (handle, answer) in asked.items():
        with _noted(found, name):
            hello = ray.get(answer, timeout=max(1.0, until - time.monotonic()))
            version, pid, url = hello["version"], hello["pid"], hello.get("url", "")
            same = version == mine
            why = "" if same else f"it runs rayguard {version}, and this is {mine}"
            found[name] = Installed(name=name, version=version, pid=pid, url=url, why=why)
            if not same and again and not _tried(name):
                old[name] = handle
    if old:
        _end(old)
        keys = {name: name.rpartition(":")[2] for name in old}
        _create_agents([key for name, key in keys.items() if name.startswith(AGENT)])
        for key in [key for name, key in keys.items() if name.startswith(SUPERVISOR)]:
            _create_supervisor(key)
        found |= {one.name: one for one in _answered(list(old), again=False)}
    return [found[name] for name in names]


@contextlib.contextmanager
def _noted(found: dict[str, Installed], name: str) -> Iterator[None]:
    """Note what goes wrong with one of many."""
    import ray  # noqa: PLC0415 - only where Ray runs

    try:
        yield
    except (ray.exceptions.RayError, ValueError) as error:
        why = str(error).strip().partition("\n")[0][:300] or repr(error)
        found[name] = Installed(name=name, why=why)


def _end(actors: Mapping[str, ActorOfOurs]) -> None:
    """Ask actors to clean up, end them whether they answer or not, and wait until their names are free."""
    import ray  # noqa: PLC0415 - only where Ray runs

    asked = [one.stop.remote() for one in actors.values()]
    ray.wait(asked, num_returns=len(asked), timeout=_STOP_S)
    for one in actors.values():
        with contextlib.suppress(Exception):  # it is gone already
            ray.kill(one, no_restart=True)
    _wait_until_free(actors)


def _tried(name: str) -> bool:
    """Say whether an actor was replaced for this version before: its node has another one installed."""
    key = f"{TRIED_KEY}{name}:{state_files.version()}"
    if kv.keys(key):
        return True
    kv.put_record(key, {"at": time.time()})
    return False


def _wait_until_free(names: Iterable[str]) -> None:
    pause, until = threading.Event(), time.monotonic() + _STOP_S
    while set(names) & set(actor_names()) and time.monotonic() < until:
        pause.wait(0.05)


def _handles(prefix: str) -> dict[str, ActorOfOurs]:
    import ray  # noqa: PLC0415 - only where Ray runs

    found: dict[str, ActorOfOurs] = {}
    for name in actor_names(prefix):
        with contextlib.suppress(ValueError):  # it went just now
            found[name.removeprefix(prefix)] = ray.get_actor(name, namespace=OURS)
    return found


def actor_names(prefix: str = "") -> list[str]:
    """Return the names of all agents and supervisors, or of those that begin so."""
    from ray.util import list_named_actors  # noqa: PLC0415 - only where Ray runs

    every = list_named_actors(all_namespaces=True)
    ours = (one["name"] for one in every if one["namespace"] == OURS)
    return sorted(name for name in ours if name.startswith(prefix))


def _can_create() -> bool:
    """Say whether what this process makes inherits nothing: no runtime environment, and no user's worker."""
    import ray  # noqa: PLC0415 - only where Ray runs

    context = ray.get_runtime_context()
    return not context.runtime_env and (not context.get_actor_id() or context.namespace == OURS)


@contextlib.contextmanager
def _only_one() -> Iterator[bool]:
    """Hold the node's lock for installations; False where another process has it."""
    folder = open_private(home() / "agents")
    try:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        lock = os.open("install.lock", flags, 0o600, dir_fd=folder)
    finally:
        os.close(folder)
    only = False
    try:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            only = True
        yield only
    finally:
        os.close(lock)


def main(arguments: list[str]) -> None:
    """Do what is asked for by one whose job would hand its environment down, and print what came of it."""
    import ray  # noqa: PLC0415 - this process runs it

    address, what, *whose = arguments
    ray.init(address=address, namespace=OURS, log_to_driver=False, logging_level="ERROR")
    try:
        for one in ensure_agents() if what == "agents" else [ensure_supervisor(*whose)]:
            print(json.dumps(asdict(one)), flush=True)  # noqa: T201 - read by who started us
    finally:
        ray.shutdown()


if __name__ == "__main__":
    main(sys.argv[1:])
