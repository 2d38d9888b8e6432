"""The loop of a supervisor, without Ray: what it keeps, takes away, and when it moves."""

from __future__ import annotations

import asyncio
import threading

import pytest

from rayguard.actors.life import incidents
from rayguard.cluster.supervisor import effects
from rayguard.cluster.supervisor import loop as module
from rayguard.cluster.supervisor.agents import AgentsOfNodes
from rayguard.cluster.supervisor.events import NodesDraining, NodeSeen
from rayguard.cluster.supervisor.job_state import begin
from rayguard.cluster.supervisor.loop import SupervisorLoop
from rayguard.cluster.supervisor.policy import SupervisorPolicy

JOB, ME, HERE, THERE = "01000000", "a" * 32, "a" * 56, "b" * 56
NAMED_IN_VAIN = ("users.own:Typo",), {"users.own:Typed": 2}, JOB


class Line:
    def __init__(self):
        self.killed = []

    async def kill(self, actor_id, *, again=False):
        self.killed.append((actor_id, again))

    async def named_and_seen(self):
        return NAMED_IN_VAIN[:2]


@pytest.fixture
def table(monkeypatch):
    """What Ray's control process keeps."""
    kept = {}
    monkeypatch.setattr(effects, "save", kept.__setitem__)
    monkeypatch.setattr(effects, "forget", lambda job: kept.pop(job, None))
    monkeypatch.setattr(module, "_LAST_WORDS_S", 0.0)
    monkeypatch.setattr(module.unmatched_paths, "tell", lambda *told: kept.setdefault("told", told))
    monkeypatch.setattr(AgentsOfNodes, "ask", lambda self, node, of_nodes: None)
    return kept


def rounds(nodes=(HERE, THERE)):
    made = SupervisorLoop(JOB, SupervisorPolicy(), "", me=(ME, HERE))
    made.state, made._line = begin(JOB, 0.0), Line()
    for node in nodes:
        made.take(NodeSeen(node=node, alive=True, at=0.0))
    return made


@pytest.mark.parametrize(("restored", "killed"), [(True, [(ME, False)]), (False, [])])
def test_only_an_actor_that_rayguard_restores_is_stopped(table, monkeypatch, restored, killed):
    """Where its user asked Ray for restarts, bare Ray would go on."""
    monkeypatch.setattr(module, "is_restored", lambda actor_id: restored)
    told = []

    async def play():
        made = rounds()
        made.take = told.append
        await made._stop_actor(ME)
        return made._line.killed

    assert asyncio.run(play()) == killed
    assert [(one.done, "asked Ray" in one.why) for one in told] == [(restored, not restored)]


async def done(made):
    while made._tasks:
        await asyncio.gather(*made._tasks)


def test_nothing_is_kept_of_a_job_that_is_over(table, monkeypatch):
    """Neither by what was being saved at its end nor by a tick after it."""
    saving, go_on = threading.Event(), threading.Event()

    def save(job, values):
        saving.set()
        go_on.wait(5.0)
        table[job] = values

    async def play():
        made = rounds()
        monkeypatch.setattr(effects, "save", save)
        slow = asyncio.ensure_future(made.save())
        await asyncio.to_thread(saving.wait, 5.0)
        end = asyncio.ensure_future(made._end())
        await asyncio.sleep(0.05)
        go_on.set()
        await asyncio.gather(slow, end)
        await made._tick()
        await made.save()

    asyncio.run(play())
    assert table == {"told": NAMED_IN_VAIN}


def test_what_was_kept_goes_even_if_the_last_line_cannot_be_written(table, monkeypatch):
    """A disk that hangs is no reason to fill Ray's table."""
    monkeypatch.setattr(module, "_EFFECT_S", 0.05)
    left = []

    async def play():
        made = rounds()
        made._when_over = lambda: left.append(True)
        await made.save()
        assert table
        made._written.put_nowait(None)  # nobody writes
        await made._end()

    asyncio.run(play())
    assert (table, left) == ({"told": NAMED_IN_VAIN}, [True])


def test_what_is_kept_is_asked_for_again_and_not_overwritten(table, monkeypatch):
    """Ray's control process may be busy while it starts again what was lost with a node."""
    before = rounds()
    before._agents.cursors = {HERE: "1:2"}
    asyncio.run(before.save())
    answers = [TimeoutError("busy"), table[JOB]]
    monkeypatch.setattr(module, "TICK_S", 0.0)

    def load(job):
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(effects, "load", load)
    after = rounds()
    asyncio.run(after._recall(0.0))
    assert after.state.restored
    assert after._agents.cursors == {HERE: "1:2"}


def test_what_is_kept_as_told_is_written(table, monkeypatch):
    """A supervisor that moves is killed right after it was saved."""
    written, go_on = [], asyncio.Event()

    async def hand(self, do, *arguments):
        if do is incidents.record:
            await go_on.wait()
            written.append(arguments[0])
        else:
            do(*arguments)

    monkeypatch.setattr(SupervisorLoop, "_in_thread", hand)

    async def play():
        made = rounds()
        writing = asyncio.ensure_future(made._writing())
        made._written.put_nowait("an incident")
        made.take(NodesDraining(deadlines={HERE: 0.0}, at=1.0))
        await asyncio.sleep(0.05)
        assert not table
        assert not made._line.killed
        go_on.set()
        await done(made)
        writing.cancel()
        return made._line.killed

    assert asyncio.run(play()) == [(ME, True)]
    assert written == ["an incident"]
    assert table


def test_cursors_of_nodes_that_are_gone_are_forgotten(table):
    """Spot nodes come and go for weeks, and the table takes 256 KiB."""

    async def play():
        made = rounds()
        made._agents.cursors = {HERE: "1:2", THERE: "3:4"}
        made.take(NodeSeen(node=THERE, alive=False, at=1.0, expected=True))
        await made._tick()
        return made._agents.cursors

    assert asyncio.run(play()) == {HERE: "1:2"}


@pytest.mark.parametrize(
    ("nodes", "drained", "moves"),
    [
        ((HERE, THERE), {HERE: 0.0}, [(ME, True)]),
        ((HERE, THERE), {THERE: 0.0}, []),
        ((HERE, THERE), {HERE: 0.0, THERE: 0.0}, []),
        ((HERE,), {HERE: 0.0}, []),
    ],
)
def test_a_supervisor_leaves_a_node_that_will_go(table, nodes, drained, moves):
    """Ray ends a drained node once it is idle, and an actor, even one that takes no CPU, keeps it busy."""

    async def play():
        made = rounds(nodes)
        made.take(NodesDraining(deadlines=drained, at=1.0))
        await done(made)
        return made._line.killed

    assert asyncio.run(play()) == moves
    assert bool(table) is bool(moves)  # what it knows goes with it
