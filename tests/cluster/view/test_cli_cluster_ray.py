"""The commands on a real cluster of two nodes: rayguard put on, looked at, and taken off again."""

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time

import pytest
from node_pair import WAIT_S, until

from rayguard.recovery.incident import Incident, Outcome
from rayguard.recovery.journal import Journal

pytestmark = [pytest.mark.ray, pytest.mark.timeout(400)]

COMMAND_S = 120


def command(both, *arguments, **environment):
    """Run ``rayguard ARGUMENTS --address ...`` as a user would."""
    return subprocess.run(
        [sys.executable, "-m", "rayguard", *arguments, "--address", both.address],
        env={**os.environ, "RAYGUARD_HOME": str(both.folder / "driver"), **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=COMMAND_S,
        check=False,
    )


@pytest.fixture(scope="module")
def installed(two_nodes):
    """The cluster with rayguard on it, and what ``up`` said."""
    return two_nodes, command(two_nodes, "up")


def test_up_puts_an_agent_on_each_node_and_says_what_comes_next(installed):
    """A line for each node, then Prometheus, then the plugin: with the jobs that run without it."""
    both, ran = installed
    assert (ran.returncode, ran.stderr) == (0, "")
    for node in (both.head, both.other):
        (line,) = [line for line in ran.stdout.splitlines() if node[:8] in line]
        assert "installed" in line
        assert "http://127.0.0.1:" in line
    assert "rayguard_metrics_service_discovery.json" in ran.stdout
    assert "file_sd_configs" in ran.stdout
    assert 'runtime_env={"rayguard": {}}' in ran.stdout
    assert "runs without the plugin" in ran.stdout
    assert "RAY_RUNTIME_ENV_PLUGINS=" in ran.stdout


def test_up_again_changes_nothing(installed):
    """The same agents, and it says so."""
    both, _ = installed
    ran = command(both, "up", "--json")
    found = json.loads(ran.stdout)
    assert ran.returncode == 0
    assert {node["node_id"]: node["what"] for node in found["nodes"]} == {
        both.head: "there",
        both.other: "there",
    }


def test_status_shows_nodes_processes_and_jobs(installed):
    """As JSON, with what agents and Ray say joined."""
    import ray

    both, _ = installed
    node, actor = (
        both.other,
        ray.remote(num_cpus=0, max_restarts=-1)(Idler).options(**both.on(both.other)).remote(),
    )
    pid = ray.get(actor.pid.remote(), timeout=WAIT_S)
    try:

        def seen():
            found = json.loads(command(both, "status", "--json").stdout)
            return found if any(one["pid"] == pid for one in found["processes"]) else None

        found = until(seen)
    finally:
        ray.kill(actor)
    (process,) = [one for one in found["processes"] if one["pid"] == pid]
    assert (process["name"], process["node"], process["restarts"]) == ("Idler", node, 0)
    assert process["memory_bytes"] > 1 << 20
    assert process["actor_id"] == actor._actor_id.hex()
    nodes = {one["id"]: one for one in found["nodes"]}
    assert (nodes[node]["state"], nodes[node]["agent"], nodes[both.head]["head"]) == ("alive", "up", True)
    assert 0 < nodes[node]["memory"]["used"] < nodes[node]["memory"]["limit"]
    (job,) = found["jobs"]  # those of the commands are not shown
    assert (job["running"], job["plugin"]) == (True, False)


def test_incidents_of_all_nodes_in_the_order_of_time(installed):
    """From the journals of both nodes; joined into stories, too."""
    both, _ = installed
    at = time.time() - 3_600
    for number, node in enumerate((both.head, both.other, both.head)):
        found = Incident(
            id=f"cafe0{number}",
            kind="host_oom",
            scope="process",
            cause="killed for memory",
            signature="oom",
            job_id="77000000",
            actor_id=f"{number:032x}",
            detected_at=at + number,
            outcome=Outcome.RECOVERED,
        )
        assert Journal(both.homes[node]).write(found)
    found = [one["id"] for one in json.loads(command(both, "incidents", "--json").stdout)]
    assert [one for one in found if one.startswith("cafe")] == ["cafe00", "cafe01", "cafe02"]
    ran = command(both, "incidents", "--stories")
    assert ran.returncode == 0
    assert "cafe00 host_oom (process) 3 incidents: " in ran.stdout


def test_an_agent_that_does_not_answer_is_named_and_the_rest_is_shown(installed):
    """Within a deadline; the exit code is 0, as this is what one looks for."""
    import ray

    both, _ = installed
    agent = ray.get_actor(f"rayguard:agent:{both.other}", namespace="_rayguard")
    pid = ray.get(agent.hello.remote(), timeout=WAIT_S)["pid"]
    os.kill(pid, signal.SIGSTOP)
    try:
        status = command(both, "status")
    finally:
        os.kill(pid, signal.SIGCONT)
    rows = {line.split()[1]: line for line in status.stdout.splitlines() if line.startswith("node ")}
    assert status.returncode == 0
    assert "agent=no-answer" in rows[both.other]
    assert "agent=up" in rows[both.head]
    until(lambda: ray.get(agent.hello.remote(), timeout=WAIT_S))


def test_top_shows_it_live_and_q_ends_it(installed):
    """On a pseudo-terminal; once, where there is none."""
    both, _ = installed
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "rayguard", "top", "--every", "0.5", "--address", both.address],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "80", "LINES": "24"},
    )
    os.close(theirs)
    shown, end, asked = "", time.monotonic() + COMMAND_S, False
    try:
        while process.poll() is None and time.monotonic() < end:
            if select.select([ours], [], [], 0.2)[0]:
                try:
                    shown += os.read(ours, 65_536).decode("utf-8", "replace")
                except OSError:  # the other end is closed
                    break
            if not asked and shown.count("q ends") > 2:
                asked = bool(os.write(ours, b"q"))
        assert process.wait(COMMAND_S) == 0, shown[-2_000:]
    finally:
        process.kill()
        process.wait(COMMAND_S)
        os.close(ours)
    assert "2 alive" in shown
    assert "Traceback" not in shown


def test_down_leaves_nothing_behind(installed):
    """It asks first, says what went, and the second time that there is nothing. Journals stay."""
    import ray
    from ray.util import list_named_actors

    both, _ = installed
    refused = command(both, "down")
    assert (refused.returncode, "--yes" in refused.stderr) == (2, True)
    ran = command(both, "down", "--yes")
    assert (ran.returncode, ran.stderr) == (0, "")
    for node in (both.head, both.other):
        assert f"removed agent of node {node[:12]}" in ran.stdout
    assert [one for one in list_named_actors(all_namespaces=True) if one["namespace"] == "_rayguard"] == []
    assert len(both.incidents(both.head)) >= 2
    again = command(both, "down")
    assert (again.returncode, "There is nothing of rayguard" in again.stdout) == (0, True)
    mine = ray.get_runtime_context().get_job_id()
    assert [job["JobID"] for job in ray._private.state.jobs() if not job["IsDead"]] == [mine]


class Idler:
    """Nobody's guarded actor."""

    def pid(self):
        return os.getpid()
