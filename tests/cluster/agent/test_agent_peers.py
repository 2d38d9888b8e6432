"""Which agent looks after nodes without one, and when an agent leaves its node: no Ray needed."""

from itertools import pairwise
from types import SimpleNamespace

import pytest

from rayguard.cluster import create_actors
from rayguard.cluster.agent import peers as agent_peers
from rayguard.cluster.agent.peers import LEAVE_S, Peers, leads, targets
from rayguard.metrics.node.discovery import Target


class Cluster:
    """Nodes a, b, c; ``c`` is drained; ``b`` has work."""

    def __init__(self, node_id):
        self.node_id = node_id

    def draining(self):
        return {"c"}

    def in_use(self):
        return {"b", "c"}


@pytest.fixture
def peers(monkeypatch):
    def make(node_id, idle_s="0", *, head=False):
        monkeypatch.setenv("RAYGUARD_AGENT_IDLE_S", idle_s)
        found = Peers(Cluster(node_id), object)
        found._head = head
        return found

    return make


def test_the_agent_with_the_smallest_id_leads():
    """Of those that said so; one that is alone leads."""
    nodes = {"a": True, "b": False, "c": False}
    assert [node for node in nodes if leads(node, nodes, {"b": {}, "c": {}})] == ["b"]
    assert leads("a", nodes, {})
    assert not leads("b", {"b": False, "c": False}, {"a": {}, "c": {}})  # what it said is not there yet


@pytest.mark.parametrize(
    ("node", "asked", "head", "idle_s", "leaves"),
    [
        ("a", "0", False, 9_000, False),
        ("a", "60", False, 59, False),
        ("a", "60", False, 61, True),
        ("a", "60", True, 61, False),
        ("c", "60", True, LEAVE_S, True),
        ("c", "0", False, LEAVE_S, True),
        ("c", "0", False, 0.0, False),
    ],
)
def test_when_an_agent_leaves(peers, node, asked, head, idle_s, leaves):
    """An actor, even one that takes no CPU, keeps its node from being idle for Ray."""
    assert peers(node, asked, head=head).should_leave(idle_s) is leaves


@pytest.mark.parametrize(("asked", "brought"), [("0", [["a", "b"]]), ("60", [["b"]])])
def test_no_agent_is_brought_where_one_had_to_leave(peers, monkeypatch, asked, brought):
    """Neither onto a drained node, nor, where idle agents leave, onto an idle one."""
    seen = []
    monkeypatch.setattr(create_actors, "create_agents", lambda _, nodes: seen.append(list(nodes)))
    peers("z", asked)._bring({"a", "b", "c"})
    peers("z", asked)._bring({"c"})
    peers("z", asked)._bring(set())
    assert seen == brought


def test_a_node_on_which_agents_die_as_they_start_is_tried_more_and_more_rarely(peers, monkeypatch):
    """It has no rayguard: each try costs a process there, and a row of Ray's table of actors."""
    seen, clock = [], [0.0]
    monkeypatch.setattr(agent_peers, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(create_actors, "create_agents", lambda _, nodes: seen.append((clock[0], list(nodes))))
    peer = peers("z")
    for clock[0] in range(0, 1_200, 5):
        peer._bring({"a"})
    assert seen[:4] == [(0, ["a"]), (5, ["a"]), (15, ["a"]), (35, ["a"])]
    assert [later - at for (at, _), (later, _) in pairwise(seen[-3:])] == [300, 300]
    peer._bring(set())  # it came
    peer._bring({"a", "b"})
    assert seen[-1] == (clock[0], ["a", "b"])


def test_prometheus_is_told_of_those_that_serve():
    """In a fixed order; an agent without an endpoint is none of them."""
    told = {"b": {"address": "h:2"}, "a": {"address": "h:1"}, "c": {"address": ""}, "d": {}}
    assert targets(told) == [Target("h:1"), Target("h:2")]
