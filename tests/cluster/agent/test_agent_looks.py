"""One look of an agent at its workers: what it must not forget is on the disk first. No Ray needed."""

import pytest

from rayguard.cluster.agent import node_agent, state_files
from rayguard.cluster.agent.node_agent import NodeAgent
from rayguard.cluster.agent.periodic import PeriodicTasks
from rayguard.cluster.agent.worker_table import Worker
from rayguard.process.identity import ProcessId

LIVES = Worker(process=ProcessId(2**22 + 5, 7), title="Rollout", target="Rollout")


class Deaths:
    def __init__(self):
        self.workers = {}

    def watch(self, workers):
        self.workers |= workers

    def watched(self):
        return list(self.workers.values())


class Roster:
    def __init__(self, found):
        self.found = found

    def look(self):
        return dict(self.found)


class Broken:
    """Looks for those that stand still, and takes longer than the agent lives."""

    def adopt(self, workers):
        raise TimeoutError("the agent was killed meanwhile")


@pytest.fixture
def made(tmp_path):
    made = NodeAgent.__new__(NodeAgent)
    made._home, made._node_id, made._tasks, made._saved = tmp_path, "n", PeriodicTasks(), []
    made._table, made._deaths, made._stalled, made._began = (
        Roster({LIVES.process: LIVES}),
        Deaths(),
        Broken(),
        False,
    )
    return made


def kept(home):
    return [Worker.restored(one) for one in state_files.load(home, "n.known.json") or ()]


def test_who_is_seen_is_kept_before_anything_else_is_done(made, tmp_path):
    """And those that are not there any more, until their death is told."""
    with pytest.raises(TimeoutError):
        made._look_at_workers()
    assert kept(tmp_path) == [LIVES]
    made._table.found = {}
    with pytest.raises(TimeoutError):
        made._look_at_workers()
    assert made._workers == {}
    assert kept(tmp_path) == [LIVES]


def test_a_look_that_ends_after_the_agent_leaves_nothing_behind(made, tmp_path):
    """`rayguard down` takes all files away while a slow look goes on."""
    made._tasks.stopped.set()
    with pytest.raises(TimeoutError):
        made._look_at_workers()
    assert list(tmp_path.iterdir()) == []


class Told(Deaths):
    def __init__(self):
        super().__init__()
        self.ids = []

    def reported(self, worker_id):
        self.ids.append(worker_id)


@pytest.mark.parametrize("marker", ["n.json", "n.known.json"])
def test_who_went_together_with_the_agent_is_asked_for_by_its_next_life(made, tmp_path, marker):
    """Ray's memory monitor kills several at once, also a worker that no look has seen yet."""
    state_files.save(tmp_path, marker, [])
    last_at = state_files.last_at(tmp_path, "n")
    asked = []

    class Cluster:
        def gone_since(self, since):
            asked.append(since)
            return ["worker"]

    made._cluster, made._deaths = Cluster(), Told()
    made._recall()
    assert made._deaths.ids == ["worker"]
    assert last_at - 60 < asked[0] < last_at


def test_the_first_agent_of_a_node_asks_for_no_earlier_deaths(made):
    """They were before its time: nobody had asked it to watch."""
    made._deaths = Told()
    made._recall()
    assert made._deaths.ids == []


def test_an_agent_that_cannot_end_itself_ends_all_the_same(made, monkeypatch):
    """It has stopped its rounds: it would hold its name and its node for ever, and do nothing."""
    ended = []

    class Peers:
        def look(self, hello):
            pass

        def should_leave(self, idle_s):
            return True

    class Cluster:
        def end(self, name):
            raise ValueError("Failed to look up the actor")

    monkeypatch.setattr(node_agent.os, "_exit", ended.append)
    made._peers, made._cluster, made._worked_at = Peers(), Cluster(), 0.0
    made._hello, made._stop = dict, lambda: ended.append("stopped")
    made._look_at_peers()
    assert ended == ["stopped", 1]
