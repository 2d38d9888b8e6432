"""The agents of a real cluster of two nodes: they come, see deaths and hangs, survive, and go."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
import urllib.request
from collections import Counter
from pathlib import Path

import psutil
import pytest
import ray
from mortals import Guarded, Mortal, Stillborn, work
from node_pair import until
from ray._raylet import GcsClient
from ray.core.generated import autoscaler_pb2

from rayguard.cluster import actor_names
from rayguard.cluster.agent import state_files
from rayguard.cluster.agent.death_verdict import NEXT_LIFE_S
from rayguard.cluster.install import installation
from rayguard.metrics.node import discovery
from rayguard.process.identity import ProcessId
from rayguard.ray_internals import kv
from rayguard.recovery.incident import Outcome

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]
WAIT_S = 150  # for a busy machine: a deadline, no measure


@pytest.fixture(scope="module")
def agents(two_nodes):
    """Agents on both nodes."""
    found = installation.ensure_agents()
    assert [one.why for one in found] == ["", ""]
    return {one.name.removeprefix(actor_names.AGENT): one for one in found}


@pytest.fixture
def on(two_nodes, agents):
    """Make a thing on a node: ``on(node_id, cls, max_restarts=...)``."""

    def make(node_id, cls, **options):
        return ray.remote(cls).options(num_cpus=0, **options, **two_nodes.on(node_id)).remote()

    return make


def get(ref):
    return ray.get(ref, timeout=WAIT_S)


def ended(two_nodes, node_id, pids):
    """Return the incidents of ``pids`` once each of them has one."""

    def told():
        found = [one for one in two_nodes.incidents(node_id) if one.pid in pids]
        return found if {one.pid for one in found} == set(pids) else None

    return until(told)


def metrics(agent):
    with urllib.request.urlopen(agent.url, timeout=WAIT_S) as answer:
        return answer.read().decode()


def hello(node_id):
    return get(installation.agents()[node_id].hello.remote())


def test_each_node_has_an_agent_that_is_found_in_three_places(two_nodes, agents):
    """By its name, in the table of names, and in the home of its node."""
    assert set(agents) == set(two_nodes.homes) == set(installation.agents())
    for node_id, home in two_nodes.homes.items():
        said = hello(node_id)
        assert (said["node_id"], said["home"], said["pid"]) == (node_id, str(home), agents[node_id].pid)
        assert state_files.agent_lives(home, node_id, state_files.version())
        assert not state_files.agent_lives(home, node_id, "0.0.0")
        until(lambda node=node_id: node in kv.records(actor_names.AGENT_KEY))
    assert set(installation.ensure_agents()) == set(
        agents.values()
    )  # the same ones; Ray orders nodes as it likes


def test_workers_that_ask_for_an_agent_find_it_without_a_word_to_ray(two_nodes, agents):
    """All at once, as when a job starts."""

    def ask():
        return installation.ensure_agent_here(), os.environ["RAYGUARD_HOME"]

    asks = [ray.remote(ask).options(num_cpus=0, **two_nodes.on(node)).remote() for node in [*agents] * 4]
    assert {answer for answer, _ in get(asks)} == {True}
    assert {hello(node)["pid"] for node in agents} == {one.pid for one in agents.values()}


def test_the_node_is_measured_and_prometheus_is_told_where(two_nodes, agents, on):
    """Each agent serves its node's numbers; the one on the head node writes the file of all."""
    actor = on(two_nodes.other, Mortal)
    get(actor.pid.remote())
    agent = agents[two_nodes.other]
    until(lambda: 'rayguard_processes{actor_class="Mortal"' in metrics(agent))
    shown = metrics(agent)
    for name in ("memory_used", "shm_limit", "object_store_limit"):
        assert f"rayguard_node_{name}_bytes{{" in shown
    assert all(f'place="{place}"' in shown for place in ("session", "spill", "home"))
    assert 'ray_version="' in shown
    file = discovery_file()
    addresses = {hello(node)["address"] for node in agents}
    # An agent says where it is before it tells Prometheus of all.
    until(lambda: file.exists() and set(json.loads(file.read_text())[0]["targets"]) == addresses)
    ray.kill(actor)


def discovery_file():
    return Path(ray._private.worker._global_node.get_temp_dir_path()) / discovery.FILE


def end_as_they_should(actors):
    """End actors in the ways that users end them; return the pids that they had."""
    pids = get([one.pid.remote() for one in actors])
    ray.kill(actors[0])
    actors[1].end.remote("wish")
    actors[2].end.remote("done")
    del actors  # the last one goes out of scope
    return pids


def test_each_death_nobody_asked_for_has_one_incident_with_its_cause(two_nodes, agents, on):
    """Unguarded actors and tasks; ends as they should be have none."""
    node = two_nodes.other
    causes = {
        "kill": "died without a word: by SIGKILL of a person or another program (memory was at",
        "exit": "ended itself with exit code 3",
        "crash": "was killed by signal 11 (SIGSEGV), its own crash",
        "sys.exit": "ended itself with exit code 4",
    }
    calm = end_as_they_should([on(node, Mortal) for _ in range(4)])
    actors = {how: on(node, Mortal) for how in causes}
    pids = {how: get(actor.pid.remote()) for how, actor in actors.items()}
    # Of a worker that dies before the agent has seen it, nobody knows the exit code.
    until(lambda: set(pids.values()) <= {one["pid"] for one in readings(node)["workers"]})
    for how, actor in actors.items():
        actor.end.remote(how)
    with pytest.raises(ray.exceptions.WorkerCrashedError):
        get(ray.remote(work).options(num_cpus=0, max_retries=0, **two_nodes.on(node)).remote("kill"))
    born = on(node, Stillborn)
    with pytest.raises(ray.exceptions.ActorDiedError):
        get(born.__ray_ready__.remote())

    until(lambda: {"work", "Stillborn"} <= {one.target for one in two_nodes.incidents(node)})
    ended(two_nodes, node, pids.values())
    found = two_nodes.incidents(node)
    for how, cause in causes.items():
        (one,) = [one for one in found if one.pid == pids[how]]
        assert f"the actor's process {pids[how]} {cause}" in one.cause
        assert (one.kind, one.scope, one.outcome) == ("actor_died", "process", Outcome.FAILED)
        assert (one.target, one.node, one.remedy) == ("Mortal", node, "none")
        assert one.actor_id == actors[how]._actor_id.hex()
    (task,) = [one for one in found if one.target == "work"]
    assert "the process of a task" in task.cause
    assert (task.kind, task.outcome, task.actor_id) == ("actor_died", Outcome.ANSWERED, "")
    (stillborn,) = [one for one in found if one.target == "Stillborn"]
    assert stillborn.kind == "user_code"
    assert "no such model: gpt-0" in "".join((stillborn.cause, *stillborn.evidence))
    assert {one.job_id for one in found} == {ray.get_runtime_context().get_job_id()}
    assert not {one.pid for one in found} & set(calm)
    assert max(Counter(one.pid for one in found).values()) == 1


def test_what_the_next_life_tells_is_not_told_again(two_nodes, agents, on):
    """Of a guarded actor. Its forked child would hide the death from Ray for minutes."""
    node = two_nodes.other
    actor = on(node, Guarded)
    pid = get(actor.pid.remote())
    child = ProcessId.of(get(actor.fork.remote(10 * WAIT_S)))
    until(lambda: any(one["pid"] == pid and one["guarded"] for one in readings(node)["workers"]))
    os.kill(pid, signal.SIGKILL)
    killed_at = time.monotonic()

    def next_life():
        try:
            return get(actor.pid.remote()) != pid
        except ray.exceptions.RayError:
            return False

    until(next_life)
    until(lambda: not child.alive())
    told = until(lambda: [one for one in ended(two_nodes, node, [pid]) if one.closed_at])
    assert {(one.outcome, one.remedy) for one in told} == {(Outcome.RECOVERED, "restart_process")}
    in_time = time.monotonic() - killed_at < NEXT_LIFE_S  # else the agent was to tell, and did not know of it
    assert len(told) == 1 or not in_time
    ray.kill(actor)


def readings(node_id):
    return get(installation.agents()[node_id].readings.remote())


def test_an_actor_that_is_stopped_is_told_and_recovers_when_it_goes_on(two_nodes, agents, on):
    """Ray takes it for alive all the time."""
    node = two_nodes.head
    actor = on(node, Mortal)
    pid = get(actor.pid.remote())
    os.kill(pid, signal.SIGSTOP)
    try:
        (open_,) = ended(two_nodes, node, [pid])
    finally:
        os.kill(pid, signal.SIGCONT)
    assert (open_.kind, open_.scope, open_.outcome) == ("engine_hang", "process", Outcome.OPEN)
    assert "Mortal stands still" in open_.cause
    over = until(
        lambda: next((o for o in two_nodes.incidents(node) if o.id == open_.id and o.closed_at), None)
    )
    assert over.outcome is Outcome.RECOVERED
    assert get(actor.pid.remote()) == pid
    ray.kill(actor)


def test_an_agent_that_is_killed_comes_back_and_has_missed_nothing(two_nodes, agents, on):
    """A death while it was dead is told, and who follows the journal by cursor gets each record."""
    node = two_nodes.head
    agent = installation.agents()[node]
    cursor, before = get(agent.told.remote(""))
    actor = on(node, Mortal)
    pid = get(actor.pid.remote())
    until(lambda: any(one["pid"] == pid for one in readings(node)["workers"]))
    first = hello(node)["pid"]
    os.kill(first, signal.SIGKILL)
    os.kill(pid, signal.SIGKILL)
    (incident,) = ended(two_nodes, node, [pid])
    assert "died without a word: by SIGKILL" in incident.cause
    assert hello(node)["pid"] != first
    _, after = get(agent.told.remote(cursor))
    assert [one["id"] for one in after] == [incident.id]
    assert {one["id"] for one in before} | {incident.id} == {one.id for one in two_nodes.incidents(node)}
    assert not [one for one in two_nodes.incidents(node) if one.pid == first]  # its own end is no incident


def test_a_node_that_joins_has_an_agent_that_names_rays_memory_monitor_and_leaves_when_it_is_drained(
    two_nodes, agents, on
):
    """The node's limit lies 2 GB above what is in use when it starts."""
    memory = psutil.virtual_memory()
    share = (memory.total - memory.available + 2.0e9) / memory.total
    monitor = {"RAY_memory_usage_threshold": f"{share:.4f}", "RAY_memory_monitor_refresh_ms": "100"}
    node = two_nodes.add(env_vars=monitor)
    until(lambda: node in kv.records(actor_names.AGENT_KEY))
    actor = on(node, Mortal)
    pid = get(actor.pid.remote())
    with pytest.raises(ray.exceptions.RayError):
        for _ in range(200):
            get(actor.eat.remote(50_000_000))
    (incident,) = ended(two_nodes, node, [pid])
    assert (incident.kind, incident.scope) == ("host_oom", "process")
    assert "killed by Ray's memory monitor at" in incident.cause
    drain(two_nodes, node)  # Ray ends a drained node once nothing is on it: the agent has to leave
    until(lambda: not any(row["Alive"] for row in ray.nodes() if row["NodeID"] == node))
    two_nodes.remove(node, graceful=False)
    until(lambda: node not in kv.records(actor_names.AGENT_KEY))


def drain(two_nodes, node):
    deadline_ms = int((time.time() + 600) * 1000)
    reason = autoscaler_pb2.DrainNodeReason.DRAIN_NODE_REASON_PREEMPTION
    assert GcsClient(address=two_nodes.address).drain_node(node, reason, "maintenance", deadline_ms)[0]


LATER_JOB = """
    import json, os, sys
    import ray
    from mortals import Mortal
    ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR",
             runtime_env={"working_dir": sys.argv[2], "env_vars": {"OF_THE_JOB": "1"}})

    @ray.remote(num_cpus=0)
    class Asks(Mortal):
        def agent(self):
            from rayguard.cluster.install import installation
            return installation.ensure_agent_here()

    asks = Asks.remote()
    print(json.dumps([ray.get(asks.agent.remote()), ray.get(asks.pid.remote())]), flush=True)
    os._exit(1)  # the job's end, and its actor's with it
"""


def test_agents_inherit_nothing_of_the_job_that_asked_for_them_and_outlive_it(two_nodes, agents, tmp_path):
    """First all are taken away to the last trace; then a worker of another job has them made anew."""
    names = {f"{actor_names.AGENT}{node}" for node in two_nodes.homes}
    assert names <= set(installation.remove_all())
    assert installation.agents() == {}
    assert [key for prefix in actor_names.KEYS for key in kv.keys(prefix)] == []
    assert [path for home in two_nodes.homes.values() for path in home.glob("agents")] == []
    assert not discovery_file().exists()

    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "settings.txt").write_text("of the job")
    (tmp_path / "job.py").write_text(textwrap.dedent(LATER_JOB))
    job = subprocess.run(
        [sys.executable, tmp_path / "job.py", two_nodes.address, tmp_path / "project"],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert job.stdout, job.stderr
    there, pid = json.loads(job.stdout.splitlines()[-1])
    assert there, job.stderr
    said = {node: hello(node) for node in installation.agents()}
    assert set(said) == set(two_nodes.homes)
    for one in said.values():
        assert "OF_THE_JOB" not in psutil.Process(one["pid"]).environ()
        assert "working_dir" not in psutil.Process(one["pid"]).cwd()
    until(lambda: ProcessId.of(pid) is None)
    until(lambda: not any(one["pid"] == pid for node in said for one in readings(node)["workers"]))
    told = [one for node in said for one in two_nodes.incidents(node) if one.pid == pid]
    assert told == []  # a job's end is no incident
    installation.remove_all()
