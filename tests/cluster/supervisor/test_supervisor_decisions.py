"""The supervisor of a job, fed with streams of events as Ray and the agents send them."""

from __future__ import annotations

import asyncio
import gc
import json
import random
import statistics
import tracemalloc
from dataclasses import replace
from time import perf_counter

import pytest

from rayguard.cluster.supervisor.events import (
    ActorSeen,
    ActorState,
    AskDeath,
    DeathReported,
    JobOver,
    JournalRecords,
    Log,
    NodesDraining,
    NodeSeen,
    QuarantineNode,
    Readmit,
    StopActor,
    Stopped,
    TableRead,
    Tick,
    WriteIncident,
)
from rayguard.cluster.supervisor.gcs_events import listen
from rayguard.cluster.supervisor.job_machine import handle
from rayguard.cluster.supervisor.job_state import SETTLED_S, begin
from rayguard.cluster.supervisor.policy import SupervisorPolicy
from rayguard.cluster.supervisor.restart_budget import RestartPolicy
from rayguard.cluster.supervisor.snapshot import MAX_BYTES, restored, saved
from rayguard.cluster.supervisor.stories import stories_of
from rayguard.cluster.supervisor.story_links import BUDGET_SPENT, CRASH_LOOP
from rayguard.errors import ConfigError
from rayguard.metrics.instruments.job import JOB_INSTRUMENTS
from rayguard.recovery.incident import Incident, Outcome

JOB = "01000000"
HERE, THERE, NEW = "a" * 56, "b" * 56, "c" * 56
POLICY = SupervisorPolicy(crash_loop=RestartPolicy(max_restarts=3, within_s=60.0, stop=True))


def actor(n, state=ActorState.ALIVE, at=0.0, **more):
    known = (
        {"class_name": "Worker", "node": THERE, "worker": f"{n:056x}"} if state is ActorState.ALIVE else {}
    )
    return ActorSeen(actor_id=f"{n:024x}{JOB}", state=state, at=at, **{**known, **more})


class Play:
    """A job, what was asked of the hands, and what they wrote."""

    def __init__(self, actors=0, policy=POLICY):
        self.state = begin(JOB, 0.0, policy)
        self.actions, self.incidents = [], {}
        self.send(NodeSeen(node=HERE, alive=True, at=0.0, address="10.0.0.1"))
        self.send(NodeSeen(node=THERE, alive=True, at=0.0, address="10.0.0.2"))
        self.send(TableRead(actors=tuple(actor(n) for n in range(actors)), at=0.0))

    def send(self, *events):
        made = []
        for event in events:
            made += handle(self.state, event)
        self.actions += made
        self.incidents |= {one.incident.id: one.incident for one in made if isinstance(one, WriteIncident)}
        return made

    def restart(self, n, at, how="SYSTEM_ERROR", restarts=1):
        """An actor that dies, of which Ray says how, and that comes back."""
        asked = self.send(actor(n, ActorState.RESTARTING, at, restarts=restarts))
        for one in asked:
            if isinstance(one, AskDeath):
                asked = asked + self.send(DeathReported(actor_id=one.actor_id, at=at, exit=how))
        return asked + self.send(actor(n, at=at + 1, restarts=restarts))

    @property
    def story(self):
        (story,) = self.state.stories.all()
        return story


def test_a_lost_node_is_one_story_with_its_actors():
    """Ray's word on the actors comes before, with, or after the one on the node."""
    for order in (0, 1, 2):
        play = Play(actors=3)
        gone = NodeSeen(node=THERE, alive=False, at=10.0, why="missed too many heartbeats")
        lost = [actor(0, ActorState.RESTARTING, 10.0, restarts=1), actor(1, ActorState.DEAD, 10.0)]
        lost.insert(order, gone)
        asked = [one for one in play.send(*lost) if isinstance(one, AskDeath)]
        play.send(*(DeathReported(actor_id=one.actor_id, at=10.2, exit="SYSTEM_ERROR") for one in asked))
        play.send(actor(2, ActorState.RESTARTING, 10.1, restarts=1), Tick(at=11.0))
        assert play.story.open
        play.send(actor(0, at=15.0, node=HERE, restarts=1), actor(2, at=16.0, node=NEW, restarts=1))
        (incident,) = play.incidents.values()
        assert (incident.kind, incident.scope, incident.node) == ("node_died", "node", THERE)
        assert incident.outcome is Outcome.FAILED
        assert incident.notes == ("1 of 3 actors did not come back",)
        assert play.story.actors == 3
        assert (
            play.story.cause == "node 10.0.0.2 (bbbbbbbb) is gone without a word: missed too many heartbeats"
        )
        assert play.state.budget_left == 1.0
        assert not play.state.loops


def test_a_drain_is_told_at_once_and_is_nobodys_fault():
    """One incident from the notice to the last actor's new place."""
    play = Play(actors=2)
    play.send(NodesDraining(deadlines={THERE: 40.0}, at=10.0))
    assert "was told to go in 30 s" in play.story.cause
    play.send(
        actor(0, ActorState.RESTARTING, 20.0, restarts=1),
        NodesDraining(deadlines={}, at=20.0),
        NodeSeen(node=THERE, alive=False, at=20.1, expected=True, why="received SIGTERM"),
        actor(1, ActorState.RESTARTING, 20.2, restarts=1),
    )
    play.send(actor(0, at=22.0, node=HERE, restarts=1), actor(1, at=23.0, node=HERE, restarts=1))
    (incident,) = play.incidents.values()
    assert (incident.kind, incident.outcome, incident.recover_s) == ("preempted", Outcome.RECOVERED, 13.0)
    assert (play.story.kind, play.story.actors, play.story.ended_at) == ("preempted", 2, 23.0)
    assert play.state.budget_left == 1.0


def test_a_node_that_nobody_used_is_taken_back_in_silence():
    """Scaling down is no incident."""
    play = Play()
    play.send(NodesDraining(deadlines={THERE: 0.0}, at=1.0))
    play.send(NodeSeen(node=THERE, alive=False, at=2.0, expected=True))
    assert not play.incidents


def test_a_notice_that_is_taken_back_is_over():
    """The node stays."""
    play = Play(actors=1)
    play.send(NodesDraining(deadlines={THERE: 40.0}, at=10.0), NodesDraining(deadlines={}, at=50.0))
    play.send(Tick(at=100.0))
    (incident,) = play.incidents.values()
    assert (incident.outcome, incident.notes) == (Outcome.RECOVERED, ("it was not taken away",))


def test_actors_that_find_no_place_are_told():
    """Nothing stays open for ever."""
    play = Play(actors=2)
    play.send(NodeSeen(node=THERE, alive=False, at=10.0), Tick(at=11.0), Tick(at=700.0))
    (incident,) = play.incidents.values()
    assert (incident.outcome, incident.notes) == (
        Outcome.FAILED,
        ("2 actors found no other place within 600 s",),
    )


def test_a_loop_is_stopped_with_its_cause():
    """The final incident names what an incident of the actor found."""
    play = Play(actors=2)
    found = Incident(
        id="x",
        kind="host_oom",
        scope="process",
        cause="Worker.items grew to 8 GB",
        job_id=JOB,
        actor_id=actor(0).actor_id,
        detected_at=10.0,
    )
    play.send(JournalRecords(incidents=(found,), at=10.5))
    for n in range(1, 4):
        made = play.restart(0, 10.0 * n, "NODE_OUT_OF_MEMORY", restarts=n)
    assert StopActor(actor(0).actor_id) in made
    play.send(
        actor(0, ActorState.DEAD, 30.5, wished=True), Stopped(actor_id=actor(0).actor_id, at=31.0, done=True)
    )
    (incident,) = play.incidents.values()
    assert (incident.signature, incident.kind, incident.remedy) == (CRASH_LOOP, "host_oom", "give_up")
    assert incident.cause == "Worker restarted 3 times in 20 s for the same cause: Worker.items grew to 8 GB"
    assert play.story.incidents == ("x", incident.id)
    assert not play.story.open
    assert play.state.reading().crash_loops == 1


def test_who_is_not_under_rayguard_is_left_running_and_told_once():
    """Never a stranger."""
    play = Play(actors=1)
    for n in range(1, 4):
        play.restart(0, 10.0 * n, restarts=n)
    play.send(Stopped(actor_id=actor(0).actor_id, at=31.0, done=False, why="a stranger"))
    for n in range(4, 9):
        assert not any(isinstance(one, StopActor) for one in play.restart(0, 10.0 * n, restarts=n))
    (incident,) = play.incidents.values()
    assert incident.cause.endswith("left running: a stranger")
    assert play.state.reading().crash_loops == 0


def test_stopping_can_be_switched_off():
    """It is told all the same."""
    play = Play(actors=1, policy=replace(POLICY, crash_loop=RestartPolicy(max_restarts=3, within_s=60)))
    for n in range(1, 4):
        play.restart(0, 10.0 * n, restarts=n)
    assert not any(isinstance(one, StopActor) for one in play.actions)
    assert len(play.incidents) == 1


def test_restarts_that_were_wished_for_are_no_loop():
    """A recycled process is replaced by intent, and costs no budget."""
    play = Play(actors=1)
    for n in range(1, 9):
        play.restart(0, float(n), "INTENDED_SYSTEM_EXIT", restarts=n)
    assert not play.incidents
    assert play.state.budget_left == 1.0


def test_restarts_whose_push_was_lost_are_counted():
    """The table is read again after an outage."""
    play = Play(actors=1)
    made = play.send(
        TableRead(actors=(actor(0, at=50.0, restarts=3, previous_worker="0" * 55 + "9"),), at=50.0)
    )
    assert [one.worker for one in made] == ["0" * 55 + "9"] * 3
    play.send(TableRead(actors=(actor(0, ActorState.DEAD, 60.0),), at=60.0))
    assert (play.state.dead, play.state.actors) == (1, {})


def test_late_and_doubled_rows_change_nothing():
    """A push and a reading overtake one another."""
    play = Play(actors=1)
    play.restart(0, 10.0, restarts=1)
    left = play.state.budget_left
    assert (
        play.send(
            actor(0, restarts=0), actor(0, ActorState.RESTARTING, 12.0, restarts=1), actor(0, restarts=1)
        )
        == []
    )
    assert play.state.budget_left == left


def test_a_spent_budget_is_told_once_with_advice():
    """And again only after it had recovered."""
    policy = SupervisorPolicy(budget=RestartPolicy(max_restarts=4, within_s=100.0), crash_loop=None)
    play = Play(actors=8, policy=policy)
    for n in range(6):
        play.restart(n, 10.0 + n)
        play.send(Tick(at=10.0 + n))
    (incident,) = play.incidents.values()
    assert (incident.signature, incident.scope) == (BUDGET_SPENT, "job")
    assert "raise the budget" in incident.advice
    play.send(Tick(at=200.0))
    assert play.state.budget_left == 1.0


def test_without_a_budget_nothing_is_kept_of_restarts():
    """Nobody would ever take them away, and a job runs for weeks."""
    play = Play(actors=2, policy=SupervisorPolicy(budget=None))
    for n in range(1, 4):
        play.restart(0, at=float(n), restarts=n)
    assert list(play.state.crashes) == []


def test_a_spent_budget_may_stop_actors():
    """Only where the user says so."""
    policy = SupervisorPolicy(
        budget=RestartPolicy(max_restarts=2, within_s=3_600.0, stop=True), crash_loop=None
    )
    play = Play(actors=4, policy=policy)
    stops = [any(isinstance(one, StopActor) for one in play.restart(n, 10.0 + n)) for n in range(3)]
    assert stops == [False, True, True]


def test_a_node_with_repeated_faults_is_shunned_until_its_time_is_over():
    """Everybody is told, and told again when it may work."""
    play = Play(actors=2)
    for n in range(3):
        fault = Incident(
            id=f"f{n}",
            kind="gpu_hardware",
            scope="node",
            cause="Xid 79",
            node=THERE,
            job_id=JOB,
            detected_at=100.0 * n,
        )
        made = play.send(JournalRecords(incidents=(fault,), at=100.0 * n))
    assert [one for one in made if isinstance(one, QuarantineNode)] == [
        QuarantineNode(THERE, 2_000.0, "3 faults of this node within 15 min")
    ]
    (incident,) = play.incidents.values()
    assert (incident.outcome, incident.remedy) == (Outcome.QUARANTINED, "quarantine")
    assert play.state.nodes_by_state() == {"alive": 1, "draining": 0, "quarantined": 1, "dead": 0}
    assert Readmit(THERE) in play.send(Tick(at=2_000.0))
    assert play.state.nodes_by_state()["quarantined"] == 0


def test_a_node_on_which_different_actors_crash_is_shunned():
    """Ray's word is enough; nobody has to write an incident."""
    play = Play(actors=4)
    made = [one for n in range(4) for one in play.restart(n, 60.0 * n)]
    assert any(isinstance(one, QuarantineNode) and one.node == THERE for one in made)


def test_a_story_is_counted_once_it_had_time_to_find_its_cause():
    """Eight deaths, and the node's word afterwards: one story of that kind."""
    play = Play()
    deaths = [
        Incident(
            id=f"d{n}",
            kind="actor_died",
            scope="process",
            cause="gone",
            node=THERE,
            actor_id=actor(n).actor_id,
            job_id=JOB,
            detected_at=10.0,
            outcome=Outcome.FAILED,
            closed_at=10.0,
        )
        for n in range(8)
    ]
    play.send(JournalRecords(incidents=tuple(deaths), at=11.0), Tick(at=12.0))
    assert play.state.reading().stories == {}
    play.send(NodeSeen(node=THERE, alive=False, at=14.0), Tick(at=10.0 + SETTLED_S), Tick(at=100.0))
    assert play.state.reading().stories == {("node_died", "node"): 1}


def test_the_end_of_a_job_is_a_line_in_the_log_and_no_incident():
    """And no line if nothing happened: a counter that grows with each job that ends is a false alarm."""
    assert Play().send(JobOver(at=5.0)) == []
    play = Play(actors=1)
    play.send(NodeSeen(node=THERE, alive=False, at=10.0))
    assert play.send(JobOver(at=100.0)) == [
        Log(
            "job 01000000 ended after 100 s with 1 stories (node_died x1), 1 of them open; interrupted for 90 s"
        )
    ]


def test_incidents_of_other_jobs_are_not_told():
    """Each job has a supervisor of its own."""
    play = Play()
    other = Incident(id="o", kind="user_code", scope="code", cause="", job_id="02000000", detected_at=1.0)
    play.send(JournalRecords(incidents=(other,), at=1.0))
    assert play.state.stories.all() == []


def busy(chance, actors, events):
    """A stream as of a bad day: restarts, incidents, a node that goes now and then."""
    restarts = dict.fromkeys(range(actors), 0)
    for n in range(events):
        one, at = chance.randrange(actors), 1.0 * n
        restarts[one] += 1
        yield actor(one, ActorState.RESTARTING, at, restarts=restarts[one])
        yield DeathReported(
            actor_id=actor(one).actor_id, at=at, exit=chance.choice(["SYSTEM_ERROR", "USER_ERROR"])
        )
        if chance.random() < 0.5:
            incident = Incident(
                id=f"i{n}",
                kind="actor_died",
                scope="process",
                cause="gone " * 20,
                actor_id=actor(one).actor_id,
                node=THERE,
                job_id=JOB,
                detected_at=at,
                closed_at=at + 1,
                outcome=Outcome.RECOVERED,
            )
            yield JournalRecords(incidents=(incident,), at=at)
        yield actor(one, at=at + 0.5, restarts=restarts[one], node=chance.choice([HERE, THERE]))
        if n % 100 == 99:
            yield Tick(at=at)


def fed(actors, events=400):
    play = Play(actors=actors, policy=replace(POLICY, quarantine=None))
    stream = list(busy(random.Random(7), actors, events))
    costs = []
    for event in stream:
        if isinstance(event, Tick):
            handle(play.state, event)
            continue
        began = perf_counter()
        handle(play.state, event)
        costs.append(perf_counter() - began)
    return play, statistics.median(costs), sum(costs) / len(costs)


def test_an_event_costs_the_same_with_a_thousand_actors_as_with_ten():
    """And an actor costs no more memory than a line of text."""
    fed(10)
    few = min((fed(10)[1:] for _ in range(5)), key=lambda pair: pair[1])
    many = min((fed(1_000)[1:] for _ in range(5)), key=lambda pair: pair[1])
    print(
        f"median and mean of an event: {few[0] * 1e6:.1f} {few[1] * 1e6:.1f} us with 10 actors, "
        f"{many[0] * 1e6:.1f} {many[1] * 1e6:.1f} us with 1,000"
    )
    assert many[0] < 3 * few[0]
    assert many[1] < 3 * few[1]

    gc.collect()
    tracemalloc.start()
    try:
        play = Play(actors=1_000)
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    print(f"{taken / 1_000:.0f} bytes an actor")
    assert len(play.state.actors) == 1_000
    assert taken / 1_000 < 2_000


def test_numbers_have_few_labels_however_many_actors():
    """What is counted by state or kind stays bounded."""
    few, many = fed(10)[0].state.reading(), fed(1_000)[0].state.reading()
    for name in ("actors", "nodes", "agents", "events"):
        assert set(getattr(few, name)) == set(getattr(many, name))
    assert len(many.stories) <= 2
    assert sum(many.actors.values()) == 1_000


def test_every_instrument_reads_the_state():
    """Once there was a story, none is empty, and each value has its labels."""
    play = Play(actors=2)
    play.send(
        NodeSeen(node=THERE, alive=False, at=10.0), Tick(at=20.0, agents=(1, 0)), Tick(at=90.0, agents=(1, 0))
    )
    found = {one.name: dict(one.read(play.state.reading())) for one in JOB_INSTRUMENTS}
    for one in JOB_INSTRUMENTS:
        assert found[one.name], one.name
        assert {len(values) for values in found[one.name]} == {len(one.labels)}
    assert found["rayguard_job_wall_seconds_total"] == {(): 90.0}
    assert found["rayguard_job_interrupted_seconds_total"] == {(): 80.0}
    assert found["rayguard_nodes"]["dead",] == 1


def test_the_state_survives_its_process_in_little_room():
    """Also with a thousand actors and as many incidents; the same stories, budgets and loops go on."""
    play = fed(1_000, events=1_500)[0]
    values = json.loads(json.dumps(saved(play.state, {HERE: "abc:17"})))
    size = len(json.dumps(values))
    print(f"{size >> 10} KiB are kept")
    assert size < 256 << 10
    state, cursors = restored(values, JOB, play.state.policy, 0.0)
    assert cursors == {HERE: "abc:17"}
    assert len(values["incidents"]) <= MAX_BYTES
    assert state.stories.all() == stories_of(state.stories.incidents())
    assert state.loops.keys() <= play.state.loops.keys()
    assert state.reading().wall_s == 0.0  # what an earlier process counted, it has shown


def test_what_happened_while_nobody_watched_is_news_to_the_next_process():
    """A restart and the loss of a node that the dead supervisor did not hear of."""
    play = Play(actors=2)
    play.restart(0, 10.0, restarts=1)
    play.send(NodesDraining(deadlines={}, at=11.0), Tick(at=12.0))
    state, _ = restored(json.loads(json.dumps(saved(play.state, {}))), JOB, POLICY, 0.0)
    next_life = Play.__new__(Play)
    next_life.state, next_life.actions, next_life.incidents = state, [], {}
    rows = (actor(0, at=20.0, restarts=2, node=HERE), actor(1, at=20.0, restarts=0, node=HERE))
    made = next_life.send(NodeSeen(node=THERE, alive=False, at=20.0), TableRead(actors=rows, at=20.0))
    assert len([one for one in made if isinstance(one, AskDeath)]) == 1
    assert {one.kind for one in next_life.incidents.values()} == {"node_died"}
    assert state.budget_left < 1.0


def test_a_node_that_came_and_went_while_nobody_watched_is_news_too():
    """What died before the earlier process saved its state is not, and nothing is told twice."""
    play = Play()
    values = json.loads(json.dumps(saved(play.state, {})))
    state, _ = restored(values, JOB, POLICY, 0.0)
    until = state.known_until
    assert until == play.state.clock.now
    old = NodeSeen(node="old", alive=False, at=until + 9, ended_at=until - 1)
    new = NodeSeen(node="new", alive=False, at=until + 9, ended_at=until + 1, address="10.0.0.9")
    found = [action for event in (old, new, new) for action in handle(state, event)]
    (told,) = {one.incident.id: one.incident for one in found if isinstance(one, WriteIncident)}.values()
    assert (told.kind, told.node) == ("node_died", "new")
    assert "10.0.0.9" in told.target
    fresh, _ = restored({}, JOB, POLICY, 0.0)
    assert handle(fresh, new) == []


def test_the_same_thing_is_written_under_the_same_id():
    """Two supervisors, or two lives of one, write one incident."""
    first, second = Play(actors=1), Play(actors=1)
    for play in (first, second):
        play.send(NodeSeen(node=THERE, alive=False, at=10.0))
    assert first.incidents.keys() == second.incidents.keys()


def test_a_policy_comes_from_plain_values():
    """With clear words for what is wrong."""
    policy = SupervisorPolicy.of(
        {"crash_loop": {"restarts": 2}, "quarantine": None, "budget": {"on_spent": "stop"}}
    )
    assert (policy.crash_loop.max_restarts, policy.quarantine, policy.budget.stop) == (2, None, True)
    for wrong in (
        {"loop": {}},
        {"crash_loop": {"restart": 2}},
        {"crash_loop": 3},
        {"budget": {"on_spent": "kill"}},
    ):
        with pytest.raises(ConfigError, match="supervisor"):
            SupervisorPolicy.of(wrong)


class ScriptedLine:
    """A line to Ray's control process that breaks after what it has to say."""

    def __init__(self, pushed, table):
        self.pushed, self.table, self.closed = pushed, table, False

    async def subscribe(self):
        self.subscribed = True

    def pushes(self):
        async def said():
            for event in self.pushed:
                yield event
            raise ConnectionError("the subscription ended")

        return (said(),)

    async def tables(self):
        assert self.subscribed, "what is published between reading and subscribing would be lost"
        return [self.table]

    async def draining(self):
        return NodesDraining(deadlines={}, at=0.0)

    async def close(self):
        self.closed = True


async def test_tables_are_read_after_each_subscription():
    """A push that was lost with its line is made up for."""
    first = ScriptedLine([actor(0), "node"], TableRead(actors=(), at=1.0))
    second = ScriptedLine([], TableRead(actors=(actor(0, restarts=1),), at=2.0))
    third = ScriptedLine([], TableRead(actors=(), at=3.0))
    lines, heard, woken = [first, second, third], [], []
    done = asyncio.Event()

    def take(event):
        heard.append(event)
        if event == third.table:
            done.set()

    listening = asyncio.ensure_future(listen(lambda: lines.pop(0), take, woken.append, again_s=(0.0,)))
    try:
        await asyncio.wait_for(done.wait(), 30)
    finally:
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)
    assert [one.at for one in heard if isinstance(one, TableRead)] == [1.0, 2.0, 3.0]
    assert actor(0) in heard
    assert woken == ["node"]
    assert first.closed
    assert second.closed
