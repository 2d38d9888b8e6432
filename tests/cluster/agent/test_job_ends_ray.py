"""What the agents of a real cluster tell of jobs that end: of a killed driver once, of what ends with it nothing."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import urllib.request

import pytest
import ray
from node_pair import until

from rayguard.cluster.agent.death_verdict import DRIVER_DIED, JOB_ENDS_S, NEXT_LIFE_S
from rayguard.cluster.install import installation

pytestmark = [pytest.mark.ray, pytest.mark.timeout(400)]
WAIT_S = 150  # for a busy machine: a deadline, no measure
PROGRAM = textwrap.dedent(
    """
    import json, os, sys, time
    import ray

    @ray.remote(num_cpus=0, max_restarts=2)
    class Worker:
        def pid(self):
            return os.getpid()

        def work(self):
            while True:
                time.sleep(0.01)

        def end(self):
            os._exit(3)

    ray.init(address=sys.argv[1], namespace="ends", log_to_driver=False, logging_level="ERROR")
    workers = [Worker.remote(), Worker.options(max_restarts=0).remote()]
    if sys.argv[2] == "detached":
        workers.append(Worker.options(name="stays", lifetime="detached", max_restarts=0).remote())
    job = ray.get_runtime_context().get_job_id()
    print(json.dumps({"job": job, "pid": os.getpid(), "workers": ray.get([one.pid.remote() for one in workers])}))
    sys.stdout.flush()
    for one in workers if sys.argv[2] == "killed" else ():
        one.work.remote()
    if sys.argv[2] in ("killed", "idle"):
        time.sleep(600)
    """
)


@pytest.fixture(scope="module")
def agents(two_nodes):
    return installation.ensure_agents()


@pytest.fixture
def start(two_nodes, agents, tmp_path):
    """Start a job in a process of its own: ``start("killed")`` gives the process and what it said."""
    path, started = tmp_path / "job.py", []
    path.write_text(PROGRAM)

    def begin(how):
        line = [sys.executable, str(path), two_nodes.address, how]
        made = subprocess.Popen(line, stdout=subprocess.PIPE, text=True)
        started.append(made)
        return made, json.loads(made.stdout.readline())

    yield begin
    for one in started:
        one.kill()
        one.wait(WAIT_S)
        one.stdout.close()


def told(two_nodes, job):
    return [one for node in two_nodes.homes for one in two_nodes.incidents(node) if one.job_id == job]


def shown(agents, line):
    """Say whether an agent shows a metric that begins so."""
    for agent in agents:
        with urllib.request.urlopen(agent.url, timeout=WAIT_S) as answer:
            if line in answer.read().decode():
                return True
    return False


def ended(job):
    return not any(one["JobID"] == job and not one["IsDead"] for one in ray._private.state.jobs())


@pytest.mark.parametrize("all_of_it", [False, True])
def test_a_killed_driver_is_told_as_that_and_its_workers_are_not(two_nodes, agents, start, all_of_it):
    """Also where a scheduler ends the whole job, the workers by SIGTERM before the driver.

    Those are idle here: Ray 2.60 aborts in the middle of a Python method, and says nothing of the SIGTERM.
    """
    process, said = start("idle" if all_of_it else "killed")
    for pid in said["workers"] if all_of_it else ():
        os.kill(pid, signal.SIGTERM)
    threading.Event().wait(1.0 if all_of_it else 0.0)
    os.kill(said["pid"], signal.SIGKILL)
    process.wait(WAIT_S)
    (incident,) = until(lambda: told(two_nodes, said["job"]), WAIT_S)
    assert (incident.signature, incident.scope, incident.target) == (DRIVER_DIED, "job", "driver")
    assert (incident.pid, incident.remedy) == (said["pid"], "none")
    job = said["job"]
    counted = f'rayguard_process_deaths_total{{actor_class="driver",kind="actor_died",ray_job="{job}"}} 1.0'
    until(lambda: shown(agents, counted), WAIT_S)
    until(lambda: shown(agents, f'rayguard_job_over{{actor_class="NodeAgent",ray_job="{job}"}} 1.0'), WAIT_S)
    with pytest.raises(AssertionError):  # no worker is told of later
        until(lambda: len(told(two_nodes, job)) > 1, JOB_ENDS_S + 1)


def test_a_job_that_ends_is_nothing_to_tell_and_what_outlives_it_is(two_nodes, agents, start):
    """A detached actor that dies after its job has ended without a fault."""
    process, said = start("detached")
    process.wait(WAIT_S)
    until(lambda: ended(said["job"]), WAIT_S)
    assert told(two_nodes, said["job"]) == []
    stays = ray.get_actor("stays", namespace="ends")
    with pytest.raises(ray.exceptions.ActorDiedError):
        ray.get(stays.end.remote(), timeout=WAIT_S)
    (incident,) = until(lambda: told(two_nodes, said["job"]), WAIT_S + NEXT_LIFE_S)
    assert (incident.pid, incident.scope) == (said["workers"][-1], "process")
