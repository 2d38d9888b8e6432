"""The supervisor of a real job on a real cluster: deaths, loops, nodes that go, its own end."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

from rayguard.cluster.supervisor.story_links import CRASH_LOOP
from rayguard.recovery.journal import Journal
from tests.cluster.node_pair import TwoNodes, until
from tests.unlisted_cluster import unlisted_cluster

pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("default")]

# The death of a node is found in about 6 s and not in 14 s. (In less, a busy machine loses nodes that live.)
HEALTH = {
    "health_check_initial_delay_ms": 2_000,
    "health_check_period_ms": 1_000,
    "health_check_timeout_ms": 5_000,
    "health_check_failure_threshold": 4,
}
POLICY = {"crash_loop": {"restarts": 3, "within_s": 600}}
LONG_S = 120


class Plain:
    """What a user wrote."""

    def pid(self):
        return os.getpid()

    def node(self):
        import ray

        return ray.get_runtime_context().get_node_id()


class Job:
    """The cluster, the job of this driver, and its supervisor."""

    def __init__(self, nodes):
        import ray

        self.ray, self.nodes = ray, nodes
        self.id = ray.get_runtime_context().get_job_id()
        self.made = []

    @property
    def supervisor(self):
        return self.ray.get_actor(f"rayguard:supervisor:{self.id}", namespace="_rayguard")

    def state(self):
        return self.ray.get(self.supervisor.state.remote(), timeout=LONG_S)

    def story(self, wanted):
        """Wait for a story that is as ``wanted`` says, and return it."""
        return until(
            lambda: next((one for one in self.state().get("stories", ()) if wanted(one)), None), LONG_S
        )

    def actor(self, node=None, cls=Plain, **options):
        made = (
            self.ray.remote(cls)
            .options(num_cpus=0, **(self.nodes.on(node) if node else {}) | options)
            .remote()
        )
        self.made.append(made)
        return made, self.pid(made)

    def pid(self, actor):
        return self.ray.get(actor.pid.remote(), timeout=LONG_S)

    def written(self):
        """Return all incidents, of all nodes that there were."""
        homes = self.nodes.folder.glob("home-*")
        return {one.id: one for home in homes for one in Journal(home).read()}

    def written_of(self, wanted, number=1):
        """Wait until so many incidents are closed on the disk too: the supervisor knows of it before."""

        def found():
            closed = [one for one in self.written().values() if wanted(one) and one.closed_at]
            return closed if len(closed) >= number else None

        return until(found, LONG_S)

    def kill(self, actor):
        """Kill it and wait until it is back."""
        pid = self.pid(actor)
        os.kill(pid, signal.SIGKILL)

        def back():
            try:
                return self.pid(actor) != pid
            except self.ray.exceptions.RayActorError as error:
                return isinstance(error, self.ray.exceptions.ActorDiedError)

        until(back, LONG_S)


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """A job with agents and a supervisor, on two nodes; more are added to be lost."""
    import ray

    from rayguard.cluster.install import installation

    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("nodes")
        patch.setenv("RAY_AUTH_MODE", "disabled")
        patch.setenv("RAYGUARD_HOME", str(folder / "driver"))
        patch.setenv(
            "PYTHONPATH",
            os.pathsep.join([*map(str, Path(__file__).parents[:2]), os.environ.get("PYTHONPATH", "")]),
        )
        cluster = unlisted_cluster()
        nodes = TwoNodes(cluster, folder)
        patch.setenv(
            "RAYGUARD_SUPERVISOR", json.dumps(POLICY)
        )  # of both nodes: a busy head leaves it to the other
        try:
            nodes.add(num_cpus=2, include_dashboard=False, _system_config=HEALTH)
            nodes.add()
            ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
            job = Job(nodes)
            assert not [one for one in installation.ensure_agents() if one.why]
            assert not installation.ensure_supervisor(job.id).why
            until(lambda: job.state().get("nodes"), LONG_S)
            yield job
        finally:
            ray.shutdown()
            cluster.shutdown()


@pytest.fixture(autouse=True)
def _no_actor_is_left(job):
    yield
    while job.made:
        job.ray.kill(job.made.pop())


def test_a_death_becomes_a_story(job):
    """The agent of its node writes the incident, the supervisor tells it."""
    actor, pid = job.actor(job.nodes.other)
    os.kill(pid, signal.SIGKILL)
    actor_id = actor._actor_id.hex()
    story = job.story(lambda one: one["kind"] == "actor_died")
    (incident,) = (one for one in job.written().values() if one.actor_id == actor_id)
    assert tuple(story["incidents"]) == (incident.id,)
    assert story["actors"] == 1
    until(lambda: "rayguard_job_stories_open" in numbers(job), LONG_S)


def numbers(job):
    """Return the names of the families that the processes of all nodes have left for their endpoints."""
    files = [file for home in job.nodes.homes.values() for file in (home / "numbers").glob("*-*.json")]
    return {
        one["name"] for file in files for one in json.loads(file.read_text())["families"] if one["samples"]
    }


def test_only_what_rayguard_made_restart_is_stopped_when_it_loops(job):
    """A stranger, and a guarded actor whose user asked Ray for restarts, go on; each is told once."""
    import rayguard

    policy = rayguard.GuardPolicy(process_budget=rayguard.RestartBudget(max_restarts=50, within_s=600.0))
    cls = type("Guarded", (Plain,), {"__module__": __name__})
    guarded = rayguard.guard(policy=policy, state="none", idempotent=True)(cls)
    ours, _ = job.actor(cls=guarded, max_restarts=-1)
    stranger, _ = job.actor(max_restarts=-1, max_task_retries=0)
    unsaid = rayguard.guard(type("Unsaid", (Plain,), {"__module__": __name__}))
    users, _ = job.actor(cls=unsaid, max_restarts=-1)
    for _ in range(3):
        for one in (ours, stranger, users):
            job.kill(one)
    wanted = {ours._actor_id.hex(): True, stranger._actor_id.hex(): False, users._actor_id.hex(): False}
    until(lambda: job.state()["crash_loops"].keys() == wanted.keys(), LONG_S)
    assert job.state()["crash_loops"] == wanted
    with pytest.raises(job.ray.exceptions.ActorDiedError):
        job.pid(ours)
    assert job.pid(stranger)
    assert job.pid(users)
    loops = {
        one.actor_id: one for one in job.written_of(lambda one: one.signature == CRASH_LOOP, len(wanted))
    }
    assert loops[ours._actor_id.hex()].cause.startswith("Guarded restarted 3 times in ")
    assert loops[ours._actor_id.hex()].remedy == "give_up"
    assert "left running" in loops[stranger._actor_id.hex()].cause
    assert "left running" in loops[users._actor_id.hex()].cause
    job.story(lambda one: loops[ours._actor_id.hex()].id in one["incidents"] and one["ended_at"] is not None)


def test_a_supervisor_that_is_killed_goes_on_where_it_was(job):
    """Nothing is lost, and nothing doubled; the job notices nothing."""
    actor, _ = job.actor(max_restarts=-1)
    before = until(lambda: all_saved(job), LONG_S)
    hello = job.ray.get(job.supervisor.hello.remote(), timeout=LONG_S)
    os.kill(hello["pid"], signal.SIGKILL)
    until(lambda: hello_of(job).get("pid") not in (None, hello["pid"]), LONG_S)
    after = until(lambda: found if (found := job.state()).get("nodes") else None, LONG_S)
    until(lambda: all(found_whole(one, job.state()["stories"]) for one in before["stories"]), LONG_S)
    assert after["crash_loops"] == before["crash_loops"]
    assert after["budget_left"] == pytest.approx(before["budget_left"])
    until(lambda: job.state()["wall_s"] > before["wall_s"], LONG_S)
    until(lambda: job.state()["actors"]["alive"] >= 1, LONG_S)
    assert job.pid(actor)


def found_whole(story, stories):
    """Say whether it is told, with all that belongs to it; agents may have told more meanwhile."""
    wanted = set(story["incidents"])
    parts = [one for one in stories if wanted & set(one["incidents"])]
    return len(parts) == 1 and wanted <= set(parts[0]["incidents"])


def all_saved(job):
    """Return the supervisor's state once all its stories are kept; agents may tell of older deaths meanwhile."""
    state = job.state()
    return state if saved_stories(job) == len(state["stories"]) else None


def saved_stories(job):
    from rayguard.cluster.supervisor import effects
    from rayguard.cluster.supervisor.policy import SupervisorPolicy
    from rayguard.cluster.supervisor.snapshot import restored

    state, _ = restored(effects.load(job.id), job.id, SupervisorPolicy(), 0.0)
    return len(state.stories.all())


def hello_of(job):
    try:
        return job.ray.get(job.supervisor.hello.remote(), timeout=5)
    except (job.ray.exceptions.RayError, ValueError):
        return {}


def test_new_actors_keep_off_a_quarantined_node(job):
    """While there is room elsewhere; rather there than nowhere."""
    from rayguard.actors import quarantined_nodes
    from rayguard.cluster.supervisor import effects

    def placed():
        quarantined_nodes._known = (float("-inf"), {})
        actors = [
            job.actor(**quarantined_nodes.elsewhere({}), scheduling_strategy="SPREAD")[0] for _ in range(3)
        ]
        return {job.ray.get(one.node.remote(), timeout=LONG_S) for one in actors}

    try:
        effects.quarantine(job.nodes.other, time.time() + 600, "a test", job.id)
        assert placed() == {job.nodes.head}
        effects.quarantine(job.nodes.head, time.time() + 600, "a test", job.id)
        assert placed() <= {job.nodes.head, job.nodes.other}
        effects.quarantine(job.nodes.other, time.time() - 1, "over", job.id)
        quarantined_nodes._known = (float("-inf"), {})
        assert set(quarantined_nodes.quarantined_nodes()) == {job.nodes.head}
        assert quarantined_nodes.elsewhere({"label_selector": {"tier": "spot"}}) == {}
    finally:
        effects.readmit(job.nodes.head)
        effects.readmit(job.nodes.other)


def test_a_drained_node_is_told_as_such(job):
    """From the notice to the actor's new place: one story, and no fault of the actor."""
    from ray._raylet import GcsClient
    from ray.core.generated.autoscaler_pb2 import DrainNodeReason

    node = job.nodes.add(resources={"spot": 1})
    until(lambda: node in job.state()["nodes"], LONG_S)
    actor = on(job, node, max_restarts=-1, max_task_retries=-1)
    reason = DrainNodeReason.DRAIN_NODE_REASON_PREEMPTION
    said = GcsClient(address=job.nodes.address).drain_node(
        node, reason, "a test", int((time.time() + 30) * 1000)
    )
    assert said[0], said
    job.story(lambda one: one["node"] == node and one["kind"] == "preempted")
    job.nodes.remove(node, graceful=True)
    story = job.story(lambda one: one["node"] == node and one["ended_at"] is not None)
    assert (story["kind"], story["scope"], story["actors"]) == ("preempted", "node", 1)
    assert "was told to go" in story["cause"]
    assert job.pid(actor)


def test_a_lost_node_is_one_story_with_its_actors(job):
    """One finds another place, one does not."""
    node = job.nodes.add()
    until(lambda: node in job.state()["nodes"], LONG_S)
    back = on(job, node, max_restarts=-1, max_task_retries=-1)
    on(job, node, max_restarts=0)
    job.nodes.remove(node, graceful=False)
    story = job.story(lambda one: one["node"] == node and one["ended_at"] is not None)
    assert (story["kind"], story["scope"], story["actors"]) == ("node_died", "node", 2)
    incidents = job.written_of(lambda one: one.node == node and one.kind == "node_died")
    assert [one.notes for one in incidents] == [("1 of 2 actors did not come back",)]
    assert job.pid(back)


def on(job, node, **options):
    """An actor on that node that may be started anywhere else; Ray does not always follow a soft wish."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    def placed():
        wish = NodeAffinitySchedulingStrategy(node, soft=True)
        actor, _ = job.actor(scheduling_strategy=wish, **options)
        if job.ray.get(actor.node.remote(), timeout=LONG_S) == node:
            return actor
        job.ray.kill(actor)
        return None

    return until(placed, LONG_S)


def test_the_supervisor_ends_with_its_job_and_tells_of_no_incident(job):
    """And leaves nothing in Ray's table."""
    from rayguard.ray_internals import kv

    before = set(job.written())
    job.ray.shutdown()
    job.ray.init(address=job.nodes.address, log_to_driver=False, logging_level="ERROR")

    def gone():
        try:
            return job.supervisor is None
        except ValueError:
            return True

    until(gone, LONG_S)
    assert [one for key, one in job.written().items() if key not in before and one.scope == "job"] == []
    assert kv.keys("supervisor") == []
