"""What the supervisor of a job does with its hands: lines in the cluster's table, the journal, ending actors.

Everything here may block or raise; ``supervisor_rounds`` calls it aside and counts what fails.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

from rayguard.actors import records, shunned
from rayguard.cluster import agent_ray

if TYPE_CHECKING:
    from rayguard.recovery.incident import Incident

STATE_KEY = "supervisor-state:"
NAME_KEY = "supervisor:"
_MAX_BYTES = 256 << 10  # the table lives in the memory of Ray's control process


def load(job_id: str) -> dict[str, Any]:
    """Return what an earlier supervisor of the job saved; empty where there was none."""
    return agent_ray.said(f"{STATE_KEY}{job_id}").get("", {})


def save(job_id: str, values: dict[str, Any]) -> None:
    """Keep ``values`` beyond this process.

    Raises:
        ValueError: They are too many bytes for the table.
    """
    size = len(json.dumps(values))
    if size > _MAX_BYTES:
        raise ValueError(f"{size} bytes of state of job {job_id}: at most {_MAX_BYTES} are kept")
    agent_ray.say(f"{STATE_KEY}{job_id}", values)


def forget(job_id: str) -> None:
    """Take away what was saved of the job, and its supervisor's name."""
    for key in (f"{STATE_KEY}{job_id}", f"{NAME_KEY}{job_id}"):
        agent_ray.unsay(key)


def shun(node: str, until: float, why: str, job_id: str) -> None:
    """Let everybody know that a node gets no work."""
    agent_ray.say(f"{shunned.KEY}{node}", {"until": until, "why": why, "job_id": job_id})


def readmit(node: str) -> None:
    """Let everybody know that a node may work again."""
    agent_ray.unsay(f"{shunned.KEY}{node}")


def sweep() -> None:
    """Take away lines of quarantines that are over, of jobs that nobody supervises any more."""
    for node, line in agent_ray.said(shunned.KEY).items():
        if float(line.get("until", 0.0)) <= time.time():
            readmit(node)


def write(incident: Incident) -> None:
    """Write into the journal of this node, and count what is closed."""
    records.record(incident)


def marked(actor_id: str) -> bool:
    """Say whether the actor itself left word in Ray's table: its process ran under rayguard."""
    return bool(agent_ray.keys(f"actor:{actor_id}:"))


def agent_of(node: str) -> Any:
    """Return the handle of a node's agent.

    Raises:
        ValueError: The node has none.
    """
    import ray  # noqa: PLC0415 - only where Ray runs

    return ray.get_actor(f"rayguard:agent:{node}", namespace=agent_ray.OURS)
