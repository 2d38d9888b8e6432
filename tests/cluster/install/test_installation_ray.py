"""Agents and supervisors on a cluster with Ray's token authentication, made by a driver that has an environment."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.ray, pytest.mark.timeout(500)]

SCRIPT = """
import json, os, signal, threading
import ray
from node_pair import until
from mortals import Mortal

ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR",
         runtime_env={"env_vars": {"OF_THE_JOB": "1"}})
assert os.environ["RAY_AUTH_MODE"] == "token"
from rayguard.cluster import actor_names
from rayguard.cluster.install import installation
from rayguard.ray_internals import kv
from rayguard.home import home
from rayguard.recovery.journal import Journal

made = installation.ensure_agents()
job = ray.get_runtime_context().get_job_id()
supervisor = installation.ensure_supervisor(job)
again = installation.ensure_agents()

actor = ray.remote(num_cpus=0)(Mortal).remote()
pid = ray.get(actor.pid.remote(), timeout=150)
child = ray.get(actor.fork.remote(600), timeout=150)
(agent,) = installation.agents().values()
until(lambda: any(w["pid"] == pid for w in ray.get(agent.readings.remote(), timeout=150)["workers"]))
os.kill(pid, signal.SIGKILL)
incident = until(lambda: next((one for one in Journal(home()).read() if one.pid == pid), None), 180)
try:
    os.kill(child, 0)
    left_alone = True
    os.kill(child, signal.SIGKILL)
except ProcessLookupError:
    left_alone = False

# Another rayguard was here before: it is replaced once.
agent_pid = again[0].pid
from rayguard.cluster.agent import state_files
state_files.version = lambda: "99.0"
(newer,) = installation._answered([made[0].name])
(once,) = installation._answered([made[0].name])

removed = installation.remove_all()
print("TOLD " + json.dumps({
    "made": [one.why for one in made], "same": made == again, "supervisor": [supervisor.name, supervisor.why],
    "job": job, "notes": list(incident.notes), "cause": incident.cause, "left_alone": left_alone, "child": child,
    "replaced": newer.pid != agent_pid, "once": once.pid == newer.pid, "why": newer.why, "removed": removed,
    "keys": [key for prefix in actor_names.KEYS for key in kv.keys(prefix)],
}))
ray.shutdown()
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    folder = tmp_path_factory.mktemp("token")
    (folder / "driver.py").write_text(SCRIPT)
    environment = {
        **os.environ,
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": "a" * 64,
        "RAYGUARD_HOME": str(folder / "home"),
        "PYTHONPATH": os.pathsep.join(
            [*map(str, Path(__file__).parents[:2]), os.environ.get("PYTHONPATH", "")]
        ),
    }
    run = subprocess.run(
        [sys.executable, folder / "driver.py"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
    )
    lines = [line for line in run.stdout.splitlines() if line.startswith("TOLD ")]
    assert lines, run.stdout + run.stderr
    return json.loads(lines[0].removeprefix("TOLD "))


def test_a_driver_with_an_environment_and_a_token_has_agents_and_a_supervisor(told):
    """Another process makes them, once, with the same token."""
    assert told["made"] == [""]
    assert told["same"]
    assert told["supervisor"] == [f"rayguard:supervisor:{told['job']}", ""]


def test_a_death_that_ray_does_not_see_is_told_and_strangers_are_left_alone(told):
    """A forked child holds the dead worker's connection; rayguard does not run in it."""
    assert "died without a word: by SIGKILL" in told["cause"]
    assert "Ray has not noticed it" in told["cause"]
    assert f"its forked children {told['child']} hold its connection" in "".join(told["notes"])
    assert told["left_alone"]


def test_an_agent_of_another_rayguard_is_replaced_once(told):
    """Where its node has another one installed, that is said, and not tried again and again."""
    assert told["replaced"]
    assert told["once"]
    assert "it runs rayguard" in told["why"]


def test_all_of_it_is_removed(told):
    """Both kinds, and what they wrote into the table of names."""
    assert len(told["removed"]) == 2
    assert told["keys"] == []
