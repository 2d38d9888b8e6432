"""What the supervisor of a job does to the world: lines in the cluster's table, and the journal.

Everything here may block or raise; ``rayguard.cluster.supervisor.loop`` calls it in a thread and counts what
fails.
"""

from __future__ import annotations

import json
import time

from rayguard.cluster.actor_names import QUARANTINE_KEY, STATE_KEY, SUPERVISOR_KEY
from rayguard.ray_internals import kv

_MAX_BYTES = 256 << 10  # the table lives in the memory of Ray's control process


def load(job_id: str) -> dict[str, object]:
    """Return what an earlier supervisor of the job saved; empty where there was none."""
    return kv.records(f"{STATE_KEY}{job_id}").get("", {})


def save(job_id: str, values: dict[str, object]) -> None:
    """Keep ``values`` beyond this process.

    Raises:
        ValueError: They are too many bytes for the table.
    """
    size = len(json.dumps(values))
    if size > _MAX_BYTES:
        raise ValueError(f"{size} bytes of state of job {job_id}: at most {_MAX_BYTES} are kept")
    kv.put_record(f"{STATE_KEY}{job_id}", values)


def forget(job_id: str) -> None:
    """Take away what was saved of the job, and its supervisor's name."""
    for key in (f"{STATE_KEY}{job_id}", f"{SUPERVISOR_KEY}{job_id}"):
        kv.delete(key)


def quarantine(node: str, until: float, why: str, job_id: str) -> None:
    """Let everybody know that a node gets no work."""
    kv.put_record(f"{QUARANTINE_KEY}{node}", {"until": until, "why": why, "job_id": job_id})


def readmit(node: str) -> None:
    """Let everybody know that a node may work again."""
    kv.delete(f"{QUARANTINE_KEY}{node}")


def sweep() -> None:
    """Take away lines of quarantines that are over, of jobs that nobody supervises any more."""
    for node, line in kv.records(QUARANTINE_KEY).items():
        if float(line.get("until", 0.0)) <= time.time():
            readmit(node)
