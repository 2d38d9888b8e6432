"""All that Ray, the nodes' agents and the jobs' supervisors say of the cluster now, as plain JSON values.

Everybody is asked at once and has the same deadline; who does not answer is named, and the others are shown.
What it means is ``rayguard.cluster.view.cluster_view``. Needs a connected Ray: a driver, or a worker of the
cluster.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any, TypeVar

from rayguard.cluster.install import installation
from rayguard.cluster.view.connect import last_line
from rayguard.harmless import harmless
from rayguard.ray_internals import gcs_tables, kv, rows
from rayguard.ray_internals.capability import switched_off

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Answers = dict[str, dict[str, Any]]

T = TypeVar("T")
DEADLINE_S = 5.0
_MORE_S = 0.02  # for each node
_ERROR_CHARS = 200


def ask(*, deadline_s: float = DEADLINE_S, pages: bool = True, since: float | None = None) -> dict[str, Any]:
    """Return what is known of the cluster; with ``since``, also the incidents from then on (wall clock).

    A part that cannot be had is missing, and said so under ``errors``.
    """
    errors: list[str] = []
    nodes = _part(errors, "nodes", _nodes) or []
    wanted: dict[str, tuple[object, ...]] = {"readings": (), **({"pages": ()} if pages else {})}
    if since is not None:
        wanted["incidents"] = (since,)
    living = {node["id"] for node in nodes if node["alive"]}
    every = _part(errors, "agents", installation.agents) or {}
    agents = {node: agent for node, agent in every.items() if node in living}
    supervisors = _part(errors, "supervisors", installation.supervisors) or {}
    calls = {
        (whose, method): _call(agent, method, arguments)
        for whose, agent in agents.items()
        for method, arguments in wanted.items()
    }
    calls |= {(job, "state"): _call(one, "state", ()) for job, one in supervisors.items()}
    answers = _gathered(calls, deadline_s + _MORE_S * len(nodes))
    return {
        "at": time.time(),
        "nodes": nodes,
        "draining": _part(errors, "draining nodes", gcs_tables.draining_nodes) or {},
        "quarantined": _part(errors, "quarantine", lambda: kv.records("quarantine:")) or {},
        "told": _part(errors, "table of agents", lambda: kv.records("agent:")) or {},
        "own": _part(errors, "table of supervisors", lambda: kv.records("supervisor:")) or {},
        "actors": _part(errors, "actors", _actors) or [],
        "agents": {node: answers.get(node, {}) for node in agents},
        "jobs": _part(errors, "jobs", _jobs) or [],
        "supervisors": {job: answers.get(job, {}) for job in supervisors},
        "errors": [*errors, *_off(errors)],
    }


def _part(errors: list[str], name: str, read: Callable[[], T]) -> T | None:
    try:
        return read()
    except Exception as error:  # noqa: BLE001 - an interface that this version of Ray does not have, a cluster that goes
        errors.append(f"{name}: {_shortly(error)}")
        return None


def _off(errors: list[str]) -> list[str]:
    """Return what Ray's changes switched off in this process, beyond what was said of a part."""
    off = switched_off().items()
    return [f"{name}: off, {why}" for name, why in off if not any(why in error for error in errors)]


def _call(actor: object, method: str, arguments: tuple[object, ...]) -> object:
    with harmless("ask"):
        return getattr(actor, method).remote(*arguments)
    return None


def _gathered(calls: Mapping[tuple[str, str], object], deadline_s: float) -> Answers:
    """Return what was answered in time, by who and what; why not, under ``error``."""
    import ray  # noqa: PLC0415 - only where Ray runs

    refs = [ref for ref in calls.values() if ref is not None]
    ready = set(ray.wait(refs, num_returns=len(refs), timeout=deadline_s)[0]) if refs else set()
    found: Answers = {}
    for (whose, name), ref in calls.items():
        answer = found.setdefault(whose, {})
        if ref is None or ref not in ready:
            answer["error"] = f"no answer within {deadline_s:.0f} s"
            continue
        try:
            answer[name] = ray.get(ref, timeout=1.0)
        except Exception as error:  # noqa: BLE001 - an actor that is gone or being replaced, an older version of it
            answer["error"] = _shortly(error)
    return found


def _nodes() -> list[dict[str, Any]]:
    import ray  # noqa: PLC0415 - only where Ray runs

    return [
        {
            "id": row["NodeID"],
            "alive": bool(row["Alive"]),
            "host": str(row.get("NodeManagerHostname") or ""),
            "address": str(row.get("NodeManagerAddress") or ""),
            "head": "node:__internal_head__" in (row.get("Resources") or {}),
            "why": str(row.get("DeathReasonMessage") or ""),
        }
        for row in ray.nodes()
    ]


def _actors() -> list[list[object]]:
    """Return node, pid, id and restarts of each living actor."""
    return [[row.node_id, row.pid, row.actor_id, row.lives] for row in gcs_tables.living_actors()]


def _jobs() -> list[dict[str, object]]:
    """Return the jobs, but for Ray's own and these commands'; ``plugin``: whether they asked for rayguard."""
    return [
        {
            "id": row.job_id,
            "entrypoint": row.entrypoint,
            "running": row.running,
            "plugin": _asks_for_it(row.runtime_env),
        }
        for row in gcs_tables.jobs()
        if not row.namespace.startswith((rows.OURS, "_ray_internal"))
    ]


def _asks_for_it(runtime_env: str) -> bool:
    try:
        asked = json.loads(runtime_env or "{}").get("rayguard")
    except (ValueError, AttributeError):
        return False
    return asked is not None and asked is not False


def _shortly(error: BaseException) -> str:
    return f"{type(error).__name__}: {last_line(error)}"[:_ERROR_CHARS]
