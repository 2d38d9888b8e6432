"""An actor whose call never ends is told by its node's agent, with the line where it stands."""

import os
import signal

import pytest
import ray
from mortals import Guarded
from node_pair import until

from rayguard.cluster.agent.stall_verdict import SEEN
from rayguard.cluster.install import installation
from rayguard.recovery.incident import Outcome

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]
WAIT_S = 150  # for a busy machine: a deadline, no measure
PATIENCE_S = 180


@pytest.fixture(scope="module")
def node(two_nodes):
    """A node whose agent calls three seconds a silence."""
    found = two_nodes.add(env_vars={"RAYGUARD_AGENT_SILENT_S": "3"})
    assert [one.why for one in installation.ensure_agents()] == ["", "", ""]
    yield found
    installation.remove_all()


def test_a_call_that_never_ends_is_told_once_and_closed_when_it_ends_after_all(two_nodes, node, tmp_path):
    """Its pace is learnt from its earlier calls; nothing is done to it."""
    actor = ray.remote(Guarded).options(num_cpus=0, **two_nodes.on(node)).remote()
    pid = ray.get(actor.pid.remote(), timeout=WAIT_S)
    agent = installation.agents()[node]
    ray.get([actor.turn.remote(0.1) for _ in range(SEEN)], timeout=WAIT_S)
    os.kill(ray.get(agent.hello.remote(), timeout=WAIT_S)["pid"], signal.SIGKILL)  # what it knew is no loss
    assert not [one for one in two_nodes.incidents(node) if one.pid == pid]
    stands = actor.turn.remote(PATIENCE_S, tmp_path / "over")
    (told,) = until(lambda: [one for one in two_nodes.incidents(node) if one.pid == pid])
    assert (told.kind, told.scope, told.outcome) == ("engine_hang", "process", Outcome.OPEN)
    assert "`Guarded.turn` is silent, far beyond its own pace" in told.cause
    assert any(line.startswith("turn (") and "mortals.py" in line for line in told.evidence)
    assert told.actor_id == actor._actor_id.hex()
    before = ray.get(agent.hello.remote(), timeout=WAIT_S)["pid"]
    os.kill(before, signal.SIGKILL)  # its next life takes the incident over
    until(lambda: ray.get(agent.hello.remote(), timeout=WAIT_S)["pid"] != before)
    ray.wait([stands], timeout=8.0)
    assert [(one.id, one.outcome) for one in two_nodes.incidents(node) if one.pid == pid] == [
        (told.id, Outcome.OPEN)
    ]
    (tmp_path / "over").touch()
    ray.get(stands, timeout=PATIENCE_S)
    closed = until(lambda: [one for one in two_nodes.incidents(node) if one.pid == pid and one.closed_at])
    assert [(one.id, one.outcome) for one in closed] == [(told.id, Outcome.RECOVERED)]
    assert ray.get(agent.hello.remote(), timeout=WAIT_S)["late"] == []
    ray.kill(actor)
