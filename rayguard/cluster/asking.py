"""All that Ray, the nodes' agents and the jobs' supervisors say of the cluster now, as plain JSON values.

Everybody is asked at once and has the same deadline; who does not answer is named, and the others are shown.
What it means is ``rayguard.cluster.view``. Needs a connected Ray: a driver, or a worker of the cluster.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

from rayguard.cluster import agent_ray
from rayguard.recovery.harmless import harmless

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Answers = dict[str, dict[str, Any]]

DEADLINE_S = 5.0
_MORE_S = 0.02  # for each node
_ERROR_CHARS = 200


def ask(*, deadline_s: float = DEADLINE_S, pages: bool = True, since: float | None = None) -> dict[str, Any]:
    """Return what is known of the cluster; with ``since``, also the incidents from then on (wall clock).

    A part that cannot be had is missing, and said so under ``errors``.
    """
    errors: list[str] = []
    nodes = _part(errors, "nodes", _nodes, [])
    wanted: list[tuple[str, str, tuple[Any, ...]]] = [("readings", "readings", ())]
    if pages:
        wanted.append(("pages", "pages", ()))
    if since is not None:
        wanted.append(("incidents", "incidents", (since,)))
    living = {node["id"] for node in nodes if node["alive"]}
    agents = {node: agent for node, agent in _part(errors, "agents", _agents, {}).items() if node in living}
    supervisors = _part(errors, "supervisors", _supervisors, {})
    calls = {
        (whose, name): _call(agent, method, arguments)
        for whose, agent in agents.items()
        for name, method, arguments in wanted
    }
    calls |= {(job, "state"): _call(one, "state", ()) for job, one in supervisors.items()}
    answers = _gathered(calls, deadline_s + _MORE_S * len(nodes))
    return {
        "at": time.time(),
        "nodes": nodes,
        "draining": _part(errors, "draining nodes", _draining, {}),
        "quarantined": _part(errors, "quarantine", lambda: agent_ray.said("quarantine:"), {}),
        "told": _part(errors, "table of agents", lambda: agent_ray.said("agent:"), {}),
        "own": _part(errors, "table of supervisors", lambda: agent_ray.said("supervisor:"), {}),
        "actors": _part(errors, "actors", _actors, []),
        "agents": {node: answers.get(node, {}) for node in agents},
        "jobs": _part(errors, "jobs", _jobs, []),
        "supervisors": {job: answers.get(job, {}) for job in supervisors},
        "errors": errors,
    }


def _part(errors: list[str], name: str, read: Callable[[], Any], otherwise: Any) -> Any:
    try:
        return read()
    except Exception as error:  # noqa: BLE001 - an interface that this version of Ray does not have, a cluster that goes
        errors.append(f"{name}: {_shortly(error)}")
        return otherwise


def _agents() -> Mapping[str, Any]:
    from rayguard.cluster import installation  # noqa: PLC0415 - beside Ray only

    return installation.agents()


def _supervisors() -> Mapping[str, Any]:
    from rayguard.cluster import installation  # noqa: PLC0415 - beside Ray only

    return installation.supervisors()


def _call(actor: Any, method: str, arguments: tuple[Any, ...]) -> Any:
    with harmless("ask"):
        return getattr(actor, method).remote(*arguments)
    return None


def _gathered(calls: Mapping[tuple[str, str], Any], deadline_s: float) -> Answers:
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


def _draining() -> dict[str, int]:
    """Return the deadlines (wall clock, ms; 0: none) of the nodes that drain."""
    from ray._private.state import state  # noqa: PLC0415 - only where Ray runs

    return dict(state.get_draining_nodes())


def _actors() -> list[list[Any]]:
    """Return node, pid, id and restarts of each living actor: 1 kB each from the head node."""
    from ray._private.state import state  # noqa: PLC0415 - only where Ray runs
    from ray.core.generated import gcs_pb2  # noqa: PLC0415

    rows = state._connect_and_get_accessor().get_actor_table(None, "ALIVE")  # noqa: SLF001
    return [
        [row.address.node_id.hex(), int(row.pid), row.actor_id.hex(), int(row.num_restarts)]
        for row in map(gcs_pb2.ActorTableData.FromString, rows)
    ]


def _jobs() -> list[dict[str, Any]]:
    """Return the jobs, but for Ray's own and these commands'; ``plugin``: whether they asked for rayguard."""
    from ray._private.state import state  # noqa: PLC0415 - only where Ray runs
    from ray.core.generated import gcs_pb2  # noqa: PLC0415

    rows = state._connect_and_get_accessor().get_job_table(  # noqa: SLF001
        skip_submission_job_info_field=True, skip_is_running_tasks_field=True
    )
    return [
        {
            "id": row.job_id.hex(),
            "entrypoint": row.entrypoint,
            "running": not row.is_dead,
            "began_at": row.start_time / 1000,
            "ended_at": row.end_time / 1000 if row.is_dead else None,
            "plugin": _asks_for_it(row.config.runtime_env_info.serialized_runtime_env),
        }
        for row in map(gcs_pb2.JobTableData.FromString, rows)
        if not row.config.ray_namespace.startswith(("_rayguard", "_ray_internal"))
    ]


def _asks_for_it(runtime_env: str) -> bool:
    try:
        asked = json.loads(runtime_env or "{}").get("rayguard")
    except (ValueError, AttributeError):
        return False
    return asked is not None and asked is not False


def _shortly(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1] if lines else ''}"[:_ERROR_CHARS]
