"""rayguard on a real cluster, watched by a real Prometheus: ``make check-deploy``. Last line JSON.

Three nodes; a job of unmodified user code under the plugin alone, with bugs of its own, killed and frozen from
outside; a job on a pool of real engines; then every panel's query and every alert is put to Prometheus, jobs end in
every way, a node is drained, one is lost, and rayguard is taken away.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rayguard.memory.probes.node import MonitorSettings, NodeProbe
from rayguard.metrics.node import discovery
from tests.benchmarks.cluster import endings, runbooks, strikes, verdict
from tests.benchmarks.cluster.alarms import Alarms
from tests.benchmarks.cluster.jobs import Job
from tests.benchmarks.cluster.prometheus import Prometheus
from tests.benchmarks.cluster.scrape import config
from tests.benchmarks.cluster.stage import Stage, new_folder
from tests.benchmarks.cluster.storm import kill_agent, kill_prometheus, kill_supervisor, storm

NODES = 3
_HERE = Path(__file__).parent
_RULES = [Path("deploy/prometheus") / name for name in ("rayguard.rules.yml", "rayguard.alerts.yml")]
_ROOM_BYTES = 8 << 30  # what the job with a hunger may take before Ray's memory monitor ends it
_STEPS = 400
_QUIET_S = 20.0
_SETTLED_S = 10.0
_READY_S = 600.0
_TARGETS_S = 90.0
_FROZEN_S = 25.0
_PANELS_S = 90.0
_TELL_S = 60.0
_UP_S = 180.0
_STORM_S = 45.0
_SCRAPES = 'quantile_over_time(0.95, scrape_duration_seconds{job="rayguard"}[5m])'
_MISHAPS = ("raise", "exit", "leak", "eat")
_HANG_AT = 120
_SILENT_S = 10.0


@dataclass
class Course:
    """What has been done and found so far."""

    stage: Stage
    server: Prometheus
    alarms: Alarms
    person: runbooks.OnCall
    pool: Job
    user: Job
    struck: list[strikes.Strike] = field(default_factory=list)
    actors: strikes.Actors = field(default_factory=strikes.Actors)
    told: dict[str, Any] = field(default_factory=dict)


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--plots", type=Path, help="draw the dashboards' panels into this folder")
    options.add_argument("--endings", action="store_true", help="only the jobs that end, without engines")
    options.add_argument("--keep", action="store_true", help="keep homes, logs and Prometheus's data")
    chosen = options.parse_args()
    folder = new_folder()
    say(f"in {folder}")
    # Nobody else on it: of those who can be started again Ray's monitor kills any before the one that eats.
    last = {"more": hungry(), "num_cpus": 0, "resources": {"large": 1}}
    environment = {
        "RAYGUARD_AGENT_PORT": "0",
        "RAYGUARD_AGENT_SILENT_S": str(_SILENT_S),
        "RAY_memory_monitor_refresh_ms": "0",
    }
    nodes = 1 if chosen.endings else NODES
    with Stage(folder, nodes=nodes, environment=environment, last_node=last) as stage:
        told = run_endings(stage, folder) if chosen.endings else run(stage, folder, chosen.plots)
    if not chosen.keep:
        import shutil

        shutil.rmtree(folder, ignore_errors=True)
    print(json.dumps(told))
    return int(bool(told["endings_amiss"]) if chosen.endings else not verdict.good(told))


def say(what: str) -> None:
    """Say to the person who waits what goes on."""
    print(f"{time.strftime('%H:%M:%S')}  {what}", file=sys.stderr, flush=True)


def hungry() -> dict[str, str]:
    """Return the environment of the node whose memory monitor kills; the others' never does."""
    memory = NodeProbe(MonitorSettings()).read()
    assert memory is not None, "this machine does not tell its memory"
    share = (memory.used + _ROOM_BYTES) / memory.total
    return {"RAY_memory_usage_threshold": f"{min(0.93, share):.3f}", "RAY_memory_monitor_refresh_ms": "250"}


def prometheus(stage: Stage, folder: Path) -> Prometheus:
    """Put rayguard onto the cluster; return the Prometheus that will watch it."""
    say("rayguard up")
    rayguard("up", stage.address)
    found = stage.temp_folder / discovery.FILE
    return Prometheus(folder / "prometheus", config(folder / "rules", found, _RULES))


def run_endings(stage: Stage, folder: Path) -> dict[str, Any]:
    """Run the part on jobs that end by itself."""
    server = prometheus(stage, folder)
    with server, runbooks.OnCall(stage) as person, Alarms(server, person.told) as alarms:
        server.until(lambda: up(server) == stage.nodes, _TARGETS_S, "its agent is not scraped")
        threading.Event().wait(_SETTLED_S)
        told = jobs_end(stage, server, alarms, person)
    return told | runbooks.counted(person.followed)


def jobs_end(stage: Stage, server: Prometheus, alarms: Alarms, person: runbooks.OnCall) -> dict[str, Any]:
    say("jobs end: by themselves, killed, after a worker's end, and after one that rayguard gave up")
    return endings.check(stage, server, alarms, stage.folder, person.followed)


def run(stage: Stage, folder: Path, plots: Path | None) -> dict[str, Any]:
    import ray

    server = prometheus(stage, folder)
    user = Job(
        str(_HERE / "user_job.py"),
        [
            *("--address", stage.address, "--steps", str(_STEPS), "--leak-mib", "2"),
            *("--hang-at", str(_HANG_AT)),
            *("--mishaps", *_MISHAPS, "--runtime-env", json.dumps({"rayguard": {}})),
        ],
        folder / "user",
        stage.homes[0],
    )
    asked = ["--address", stage.address, "--seconds", "3600"]
    pool = Job(str(_HERE / "pool_job.py"), asked, folder / "pool", stage.homes[0])
    with server, runbooks.OnCall(stage) as person, Alarms(server, person.told) as alarms:
        server.until(lambda: up(server) == NODES, _TARGETS_S, f"not {NODES} agents are scraped")
        with user, pool:
            ray.init(address=stage.address, log_to_driver=False, logging_level="ERROR")
            try:
                course = Course(stage, server, alarms, person, pool, user)
                perform(course, plots)
            finally:
                ray.shutdown()
        say("rayguard down")
        rayguard("down", stage.address)
        course.told["left_behind"] = verdict.left_behind(stage)
    course.told |= runbooks.counted(course.person.followed)
    course.told["alerts_fired_live"] = len(alarms.fired & alarms.resolved)
    course.told["alerts_fired"] = sorted(alarms.fired)
    return course.told


def perform(course: Course, plots: Path | None) -> None:
    server, told = course.server, course.told
    say("the user's job works; the engines of the other one start")
    course.user.until("step", _READY_S, least=len(_MISHAPS) + 2)
    own_bugs(course)
    course.pool.until("ready", _READY_S)
    verdict.incidents(course.stage, course.struck, _TELL_S)  # to tell of a death is work
    threading.Event().wait(_SETTLED_S)  # as Prometheus has it
    course.struck.append(strikes.Strike("hang", ("engine_hang",), course.actors.named("judge")))
    began, since = agents_cpu(server), time.monotonic()
    threading.Event().wait(_QUIET_S)
    told["agent_core_ratio"] = round((agents_cpu(server) - began) / (time.monotonic() - since) / NODES, 4)
    say("a worker is killed, one is frozen, so are an agent, a supervisor and Prometheus")
    course.struck.append(strikes.kill(course.actors, "rollout-0"))
    course.struck.append(
        strikes.freeze(
            course.actors,
            "rollout-1",
            _FROZEN_S,
            meanwhile=lambda: kill_ours(course),
            release=lambda pid: course.person.followed.extend(runbooks.frozen(course.stage, server, pid)),
        )
    )
    say("every panel is asked")
    told |= verdict.panels(server, _PANELS_S) | verdict.alerts(server)
    told["scrape_ms"] = round(1e3 * max(verdict.value(server, _SCRAPES)), 1)
    if plots is not None:
        from tests.benchmarks.cluster.plots import draw

        draw(server, plots)
    told |= jobs_end(course.stage, server, course.alarms, course.person)
    say(f"agents, supervisor and Prometheus are killed at random for {_STORM_S:.0f} s, and workers beside")
    told |= storm(course.server, course.actors, course.user, course.struck, _STORM_S)
    server.until(lambda: up(server) == NODES, _TARGETS_S, "an agent did not come back from the storm")
    say("a node is drained, and one is lost")
    lose_nodes(course)
    told |= verdict.incidents(course.stage, course.struck, _TELL_S)
    told |= verdict.manifests()
    told["steps"] = int(course.user.until("step", _TELL_S))
    told["nodes"] = NODES


def own_bugs(course: Course) -> None:
    """Note what the user's job does to itself."""
    kinds = {
        "raise": ("batch_indivisible",),
        "exit": ("actor_died",),
        "leak": ("host_oom",),
        "eat": ("host_oom",),
    }
    for name in _MISHAPS:
        pid = int(course.user.until(name, _TELL_S))
        course.struck.append(strikes.Strike(name, kinds[name], pid, foreseen=name in {"leak", "eat"}))


def kill_ours(course: Course) -> None:
    """Kill an agent, a supervisor and Prometheus: the jobs must not notice."""
    kill_agent(course.actors)
    kill_supervisor(course.actors)
    kill_prometheus(course.server)


def lose_nodes(course: Course) -> None:
    import ray

    cluster = course.stage.cluster
    assert cluster is not None
    lost = course.stage.add()
    course.server.until(lambda: up(course.server) == NODES + 1, _TARGETS_S, "a new node got no agent")
    _, drained, *_ = course.stage.made  # with actors of the jobs; the head and the one with the hunger stay
    course.struck.append(strikes.drain(course.stage.address, drained.node_id))
    course.struck.append(strikes.Strike("node lost", ("node_died",), 0, lost.node_id))
    cluster.remove_node(lost, allow_graceful=False)
    deadline = time.monotonic() + _TELL_S
    while any(row["NodeID"] == lost.node_id and row["Alive"] for row in ray.nodes()):
        if time.monotonic() > deadline:
            raise TimeoutError("Ray does not give up a node that was killed")
        threading.Event().wait(0.5)


def rayguard(command: str, address: str) -> None:
    """Run a command of the CLI as a person does; its output goes to who waits."""
    line = [sys.executable, "-m", "rayguard", command, "--address", address]
    if command == "down":
        line.append("--yes")
    done = subprocess.run(line, stdout=sys.stderr, timeout=_UP_S, check=False)
    if done.returncode:
        raise RuntimeError(f"rayguard {command} ended with {done.returncode}")


def up(server: Prometheus) -> int:
    return len(server.ask('up{job="rayguard"} == 1'))


def agents_cpu(server: Prometheus) -> float:
    return sum(verdict.value(server, "rayguard_agent_cpu_seconds_total"))


if __name__ == "__main__":
    sys.exit(main())
