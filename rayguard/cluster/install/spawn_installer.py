"""Starts a process that makes agents and supervisors for one whose job would hand its environment to them.

What that process does is ``rayguard.cluster.install.installation``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

_MODULE = "rayguard.cluster.install.installation"
_NOT_HANDED_DOWN = (
    "RAY_JOB",
    "RAY_RUNTIME_ENV",
    "__RAY_",
    "RAY_RAYLET",
    "RAY_CLIENT_MODE",
    "RAYGUARD_PLUGIN",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """One agent or supervisor. ``why`` says what went wrong; empty where it answers."""

    name: str
    version: str = ""
    pid: int = 0
    url: str = ""
    why: str = ""


def run(*what: str, deadline_s: float = 120.0) -> list[Installed]:
    """Have another process do it, that is connected to the same cluster and is no part of this job."""
    import ray  # noqa: PLC0415 - only where Ray runs

    kept = {name: value for name, value in os.environ.items() if not name.startswith(_NOT_HANDED_DOWN)}
    paths = [str(Path(__file__).parents[3]), *filter(None, [kept.get("PYTHONPATH", "")])]
    address = ray.get_runtime_context().gcs_address
    done = subprocess.run(
        [sys.executable, "-m", _MODULE, address, *what],
        env={**kept, "PYTHONPATH": os.pathsep.join(paths)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=deadline_s,
        check=False,
        cwd="/",
        start_new_session=True,  # not in the worker's group, which Ray ends with the worker
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines:
        raise RuntimeError(f"no agent could be installed: {done.stderr.strip()[-2_000:]}")
    return [Installed(**json.loads(line)) for line in lines]
