"""Runs programs on a Ray of its own, in one way: bare, watched, guarded or named. A process of its own.

``python -m tests.benchmarks.never_worse.driver WAY`` reads runs from standard input, one line of JSON each
(its number and the program), plays them side by side, and answers each with a line as soon as it is over.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import ray

from tests import worker_start
from tests.benchmarks.never_worse import actors, play
from tests.benchmarks.never_worse.program import Program

REPOSITORY = Path(__file__).resolve().parents[3]
WAYS = ("bare", "watched", "guarded", "named")
WORD, READY = "RAN ", "READY"
_WORKERS_AT_START = 2  # a node starts as many before anybody asks
# What each worker imports first, and what some of the programs' actors do for two seconds.
_IMPORTED = ("ray._private.workers.default_worker", "torch")
_SERVER_S = 60.0
_writing = threading.Lock()


def main(way: str) -> None:
    """Answer runs until standard input ends."""
    home = tempfile.mkdtemp(prefix="rayguard-never-worse-")
    os.environ["RAYGUARD_HOME"] = home
    os.environ["PYTHONPATH"] = os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")])
    os.environ["RAY_RUNTIME_ENV_PLUGINS"] = '[{"class": "rayguard.cluster.plugin.RayguardPlugin"}]'
    if way == "named":
        os.environ["RAY_RUNTIME_ENV_HOOK"] = "rayguard.cluster.driver.prepare"
    worker_start.use()
    ray.init(
        address="local",
        num_cpus=_WORKERS_AT_START,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
        runtime_env=_environment(way),
    )
    try:
        print(READY, flush=True)
        for line in sys.stdin:
            threading.Thread(target=_run, args=(json.loads(line), way, Path(home)), daemon=True).start()
    finally:
        ray.shutdown()
        shutil.rmtree(home, ignore_errors=True)


def _run(asked: dict[str, Any], way: str, home: Path) -> None:
    folder = tempfile.mkdtemp(prefix="program-", dir=home)
    ran = play.Play(Program.from_json(asked["program"]), way, home, Path(folder)).run()
    with _writing:
        # In one piece, on a line of its own: others print here too.
        sys.stdout.write(f"\n{WORD}{json.dumps({'run': asked['run'], **ran})}\n")
        sys.stdout.flush()


def _environment(way: str) -> dict[str, Any] | None:
    quiet = {"agent": False, "supervisor": False}
    if way == "watched":
        return {"rayguard": quiet}
    if way == "named":
        module = actors.__name__
        names = [name for name, kind in vars(actors).items() if isinstance(kind, type)]
        return {"rayguard": {**quiet, "guard": [f"{module}:{name}" for name in names if name[0].isupper()]}}
    return None


if __name__ == "__main__":
    main(sys.argv[1])
