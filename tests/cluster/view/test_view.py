"""From what a cluster answers to what its screens show: whatever is missing or wrong in the answers."""

import json

import pytest
from fabricated_cluster import (
    AT,
    a_node,
    a_page,
    a_story,
    a_worker,
    an_engine,
    an_incident,
    answers,
    node_id,
    readings,
    troubled,
)
from hypothesis import given
from hypothesis import strategies as st

from rayguard.cli.cluster_views import headline, lines
from rayguard.cluster.view.answers import incidents_in, unanswered, view
from rayguard.cluster.view.cluster_view import Answers, NodeState


def by_host(found):
    return {node.host: node for node in found.nodes}


def test_a_healthy_cluster():
    """Everything that was answered is there."""
    found = view(answers(nodes=2, actors=8), address="here")
    assert [(node.host, node.state, node.agent, node.fine) for node in found.nodes] == [
        ("gpu-000", NodeState.ALIVE, Answers.UP, True),
        ("gpu-001", NodeState.ALIVE, Answers.UP, True),
    ]
    assert sum(node.processes for node in found.nodes) == len(found.processes) == 8
    assert found.nodes[0].memory.share == pytest.approx(0.3)
    assert found.nodes[0].device.share == pytest.approx(7 / 8)
    (job,) = found.jobs
    assert (job.plugin, job.supervisor, job.budget_left, job.open_stories) == (True, Answers.UP, 0.85, 0)
    assert {engine.name for engine in found.engines} <= {f"llm-{pid}" for pid in range(1000, 1008)}


def test_troubles_come_first_and_say_why():
    """Quarantined, draining, then whatever lacks something; the dead last."""
    found = view(troubled())
    nodes = by_host(found)
    assert [node.host for node in found.nodes][:2] == ["gpu-001", "gpu-002"]
    assert found.nodes[-1].state is NodeState.DEAD
    assert found.nodes[-1].agent is Answers.NONE
    assert nodes["gpu-001"].why == "3 faults of this node within 15 min"
    assert nodes["gpu-002"].why == "42 s left"
    assert nodes["gpu-201"].agent is Answers.MISSING
    assert (nodes["gpu-202"].agent, nodes["gpu-202"].why) == (Answers.SILENT, "no answer within 5 s")
    assert nodes["gpu-000"].stopped == 1
    assert not nodes["gpu-000"].fine
    assert not found.engines[0].serving
    assert found.groups[0].stopped == 1


def test_a_quarantine_that_is_over_is_over():
    """Its line may stay in the table for a while."""
    said = answers(quarantined={node_id(0): {"until": AT - 1, "why": "old"}})
    assert by_host(view(said))["gpu-000"].state is NodeState.ALIVE


def test_a_quarantine_that_only_its_supervisor_knows_counts():
    """The supervisor says it before the table does."""
    said = answers()
    said["supervisors"]["01000000"]["state"]["quarantined"] = {node_id(1): {"until": AT + 9, "why": "GPU"}}
    assert by_host(view(said))["gpu-001"].state is NodeState.QUARANTINED


def test_what_is_switched_off_is_noted_once_for_all_processes():
    """Processes of one cluster have the same Ray."""
    said, off = answers(nodes=2), {"object scopes": "Ray 2.61 moved ray._private.worker.Worker"}
    for n, agent in enumerate(said["agents"].values()):
        agent["pages"] = [{**a_page(7 + n, "A"), "off": off}, a_page(70 + n, "B")]
    assert view(said).notes == (
        "object scopes: off, Ray 2.61 moved ray._private.worker.Worker (2 processes)",
    )


def test_a_process_is_joined_from_worker_page_and_actor_table():
    """Class and engines from its page, memory from the agent, restarts from Ray."""
    said = answers(nodes=1, actors=0)
    said["agents"][node_id(0)] |= {
        "readings": readings(
            [a_worker(7), a_worker(8, "task", guarded=False), a_worker(9, "IDLE"), a_worker(10, "")]
        ),
        "pages": [a_page(7, "Better", engines=[an_engine()], incarnation=1), {**a_page(11), "alive": False}],
    }
    said["actors"] = [[node_id(0), 7, "ab" * 16, 4], [node_id(1), 8, "cd" * 16, 9]]
    first, second = view(said).processes
    assert (first.name, first.restarts, first.guarded, len(first.engines)) == ("Better", 4, True, 1)
    assert first.actor_id == "ab" * 16
    assert (second.name, second.restarts, second.guarded) == ("task", None, False)


def test_rayguards_own_supervisors_are_nobodys_processes():
    """They run on a node like any actor."""
    said = answers(nodes=1, actors=0, own={"01000000": {"node_id": node_id(0), "pid": 7}})
    said["agents"][node_id(0)]["readings"] = readings([a_worker(7, "Supervisor")])
    assert view(said).processes == ()


def test_a_thousand_actors_are_a_few_groups():
    """By class and job, with nothing lost."""
    found = view(answers(nodes=100, actors=1_000))
    assert len(found.processes) == sum(group.processes for group in found.groups) == 1_000
    assert len(found.groups) == 7
    assert max(group.nodes for group in found.groups) == 100


def test_a_job_that_ended_is_shown_only_while_something_of_it_is_open():
    """A cluster has had hundreds of them."""
    old = {"id": "03000000", "entrypoint": "old", "running": False, "plugin": True}
    said = answers()
    said["jobs"].append(old)
    assert [job.id for job in view(said).jobs] == ["01000000"]
    said["agents"][node_id(0)]["incidents"] = [
        an_incident(1, job_id="03000000", outcome="open", closed_at=None)
    ]
    ended = view(said).jobs[-1]
    assert (ended.id, ended.running, ended.supervisor, ended.open_stories) == (
        "03000000",
        False,
        Answers.NONE,
        1,
    )


def test_stories_are_the_supervisors_and_else_those_of_the_incidents():
    """A job without a supervisor has its stories all the same."""
    said = answers()
    said["supervisors"]["01000000"]["state"]["stories"] = [a_story(5)]
    said["agents"][node_id(0)]["incidents"] = [an_incident(1), an_incident(2, job_id="02000000")]
    assert {story.id for story in view(said).stories} == {f"{5:012x}", f"{2:012x}"}


def test_incidents_of_all_nodes_are_in_order_and_each_once():
    """Two nodes may tell of the same one."""
    said = answers()
    said["agents"][node_id(0)]["incidents"] = [an_incident(3), an_incident(1)]
    said["agents"][node_id(1)]["incidents"] = [
        an_incident(2),
        an_incident(3),
        {"kind": "torn"},
        {"outcome": 7},
    ]
    assert [one.id for one in incidents_in(said)] == [f"{number:012x}" for number in (1, 2, 3)]


def test_whose_incidents_are_missing_is_said():
    """A node without an agent, and one that does not answer; not the dead."""
    said = answers()
    said["nodes"] += [a_node(7), a_node(8), a_node(9, alive=False)]
    said["agents"][node_id(8)] = {"error": "no answer within 5 s"}
    assert unanswered(said) == ("gpu-007 has no agent (rayguard up)", "gpu-008 no answer within 5 s")


def test_it_is_json():
    """All of it, for programs."""
    plain = json.loads(json.dumps(view(troubled()).to_json()))
    assert {node["state"] for node in plain["nodes"]} == {"alive", "dead", "draining", "quarantined"}
    assert plain["stories"][0]["sentence"]
    assert plain["incidents"][0]["kind"] == "host_oom"


KEYS = ["readings", "pages", "incidents", "error"]


@given(st.dictionaries(st.sampled_from(KEYS), st.sampled_from([None, {}, []])), st.sampled_from([None, {}]))
def test_answers_with_holes_are_shown_as_far_as_they_go(said, state):
    """An agent of another version, a supervisor that has just begun."""
    whole = answers()
    whole["agents"][node_id(1)] = said
    whole["supervisors"]["01000000"] = {"state": state}
    found = view(whole)
    assert len(found.nodes) == 2
    assert by_host(found)["gpu-000"].agent is Answers.UP
    assert found.jobs[0].supervisor is Answers.SILENT


def test_nothing_at_all():
    """Not even nodes."""
    found = view({})
    assert (found.nodes, found.processes, found.jobs, found.stories) == ((), (), (), ())


def test_a_watched_process_is_no_guarded_one():
    """Its page says so, for people and programs; without a page, what runs rayguard is guarded."""
    said = answers(nodes=1, actors=0)
    workers = [a_worker(7), a_worker(8), a_worker(9), a_worker(10, guarded=False)]
    pages = [a_page(7, watched=True), a_page(8, watched=False)]
    said["agents"][node_id(0)] |= {"readings": readings(workers), "pages": pages}
    found = view(said)
    assert [one.care for one in found.processes] == ["watched", "guarded", "guarded", "neither"]
    assert [(one.guarded, one.watched) for one in found.processes] == [
        (False, True),
        (True, False),
        (True, False),
        (False, False),
    ]
    (group,) = found.groups
    assert (group.processes, group.guarded, group.watched) == (4, 2, 1)
    assert found.to_json()["processes"][0]["watched"] is True
    plain = "\n".join(lines(found))
    assert plain.count("guarded=yes watched=no") == 2
    assert plain.count("guarded=no watched=yes") == 1
    assert "2 guarded, 1 watched" in headline(found).plain
