"""The process that makes agents and supervisors for one whose job would hand its environment down to them.

``run`` starts it; it connects to the same cluster, does what ``rayguard.cluster.installation`` does, and
prints what came of it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

_MODULE = "rayguard.cluster.installer"
_NOT_HANDED_DOWN = (
    "RAY_JOB",
    "RAY_RUNTIME_ENV",
    "__RAY_",
    "RAY_RAYLET",
    "RAY_CLIENT_MODE",
    "RAYGUARD_PLUGIN",
)


def run(*what: str, deadline_s: float) -> list[dict[str, Any]]:
    """Have another process do it, that is connected to the same cluster and is no part of this job."""
    import ray  # noqa: PLC0415 - only where Ray runs

    kept = {name: value for name, value in os.environ.items() if not name.startswith(_NOT_HANDED_DOWN)}
    paths = [str(Path(__file__).parents[2]), *filter(None, [kept.get("PYTHONPATH", "")])]
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
    return [json.loads(line) for line in lines]


def main(arguments: list[str]) -> None:
    """Do what ``run`` asks for, and print what came of it."""
    import ray  # noqa: PLC0415 - this process runs it

    from rayguard.cluster import agent_ray, installation  # noqa: PLC0415 - it imports this module

    address, what, said = arguments
    ray.init(address=address, namespace=agent_ray.OURS, log_to_driver=False, logging_level="ERROR")
    try:
        found = (
            installation.ensure_agents(json.loads(said))
            if what == "agents"
            else [installation.ensure_supervisor(said)]
        )
        for one in found:
            print(json.dumps(asdict(one)), flush=True)  # noqa: T201 - read by who started us
    finally:
        ray.shutdown()


if __name__ == "__main__":
    main(sys.argv[1:])
