"""What is rayguard's own is killed again and again while a job works, and workers of the job beside it."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

from tests.benchmarks.cluster import strikes

if TYPE_CHECKING:
    from tests.benchmarks.cluster.jobs import Job
    from tests.benchmarks.cluster.prometheus import Prometheus
    from tests.benchmarks.cluster.strikes import Actors, Strike

SEED = 20261123
_GAPS_S = (1.0, 5.0)
_WORKERS = ("rollout-0", "rollout-2")  # each once: Ray starts an actor of this job four times, no more


def storm(
    server: Prometheus, actors: Actors, user: Job, struck: list[Strike], seconds: float
) -> dict[str, Any]:
    """Kill for ``seconds`` what a seed says; return how often, and how the job went on meanwhile.

    Workers that are killed are added to ``struck``: each must be told, whoever was dead at that moment.

    Raises:
        RuntimeError: The job ended.
    """
    chance, pause = random.Random(SEED), threading.Event()
    ours = {
        "agent": lambda: kill_agent(actors, chance),
        "supervisor": lambda: kill_supervisor(actors),
        "prometheus": lambda: kill_prometheus(server),
    }
    began, first, killed = time.monotonic(), user.until("step", 60.0), Counter[str]()
    workers = [(began + seconds * (n + 1) / (len(_WORKERS) + 1), name) for n, name in enumerate(_WORKERS)]
    while time.monotonic() - began < seconds:
        name = chance.choice(sorted(ours))
        killed[name] += ours[name]()
        if workers and time.monotonic() >= workers[0][0]:
            struck.append(strikes.kill(actors, workers.pop(0)[1]))
        pause.wait(chance.uniform(*_GAPS_S))
    steps = user.until("step", 60.0, least=first + 1) - first
    return {"storm_kills": dict(killed), "storm_steps": int(steps)}


def kill_agent(actors: Actors, chance: random.Random | None = None) -> int:
    """Kill one node's agent; return how many were there to be killed, 0 or 1."""
    rows = actors.of_class("NodeAgent")
    return _kill(rows if chance is None else chance.sample(rows, len(rows)))


def kill_supervisor(actors: Actors) -> int:
    """Kill a job's supervisor."""
    return _kill(actors.of_class("Supervisor"))


def kill_prometheus(server: Prometheus) -> int:
    """Kill Prometheus and start it again on its data."""
    server.kill()
    server.start()
    return 1


def _kill(rows: list[dict[str, Any]]) -> int:
    living = [row["Pid"] for row in rows if row["State"] == "ALIVE"]
    for pid in living[:1]:
        strikes.kill_pid(pid)
    return len(living[:1])
