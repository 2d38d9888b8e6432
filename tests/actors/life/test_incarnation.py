"""Lives of an actor: which one this is, what outlives it, and when enough is enough."""

import dataclasses
import os
import threading
import time
from types import SimpleNamespace

import pytest

from rayguard.actors.guard import life_entry, restarts
from rayguard.actors.guard.guard import guard
from rayguard.actors.life import current_life, incarnation, incidents
from rayguard.actors.life.incarnation import ActorMemory, Incarnation, PastDeath
from rayguard.actors.mark import mark_of
from rayguard.actors.memory import call_boundary
from rayguard.errors import GaveUpError
from rayguard.faults.fault import Role
from rayguard.process.flight import recorder
from rayguard.ray_internals import kv
from rayguard.ray_internals.rows import PastLife
from rayguard.recovery.budget import RestartBudget
from rayguard.recovery.incident import Incident, Outcome, incident_of
from rayguard.recovery.policy import GuardPolicy
from rayguard.recovery.tally import TALLY

BUDGET = RestartBudget(max_restarts=2, within_s=100.0)


class FakeTable:
    """Ray's key-value table, in a dict."""

    def __init__(self):
        self.rows = {}

    def internal_kv_get(self, key, namespace, timeout):
        assert timeout
        return self.rows.get((namespace, key))

    def internal_kv_put(self, key, value, overwrite, namespace, timeout):
        assert overwrite
        assert timeout
        self.rows[namespace, key] = value

    def internal_kv_del(self, key, by_prefix, namespace, timeout):
        assert not by_prefix
        assert timeout
        self.rows.pop((namespace, key), None)


@pytest.fixture(autouse=True)
def _nothing_is_left_running(monkeypatch):
    """A life that began here would be watched and recorded for as long as there are tests."""
    monkeypatch.setattr(call_boundary, "watch", None)
    yield
    recorder.stop()
    if call_boundary.watch is not None:
        call_boundary.watch.close()


@pytest.fixture
def fake_table(monkeypatch):
    table = FakeTable()
    monkeypatch.setattr(kv, "_client", lambda: table)
    return table


@pytest.fixture(params=["fake", pytest.param("ray", marks=pytest.mark.ray)])
def memory(request):
    """The same contract for the fake and for Ray's own table."""
    request.getfixturevalue("fake_table" if request.param == "fake" else "cluster")
    return ActorMemory(f"{time.time_ns():x}")


# -- which life


def test_outside_ray_it_is_the_first_life_of_nobody():
    """A guarded class is an ordinary class there."""
    here = Incarnation.current()
    assert (here.number, here.actor_id, here.pid, here.restartable) == (0, "", os.getpid(), False)


@pytest.mark.parametrize(
    ("number", "max_restarts", "restartable"), [(0, 0, False), (0, 1, True), (1, 1, False), (99, -1, True)]
)
def test_restarts_are_left_until_rays_limit(number, max_restarts, restartable):
    """Ray counts; -1 is without end."""
    assert Incarnation(number=number, max_restarts=max_restarts).restartable is restartable


@pytest.mark.ray
def test_an_actor_and_a_driver_know_themselves(cluster):
    """Its id, class, job and node, as Ray has them."""

    @cluster.remote(max_restarts=4)
    class Knows:
        def current(self):
            return Incarnation.current(), PastDeath.before_this()

    actor = Knows.remote()
    here, death = cluster.get(actor.current.remote(), timeout=150)
    context = cluster.get_runtime_context()
    assert here.actor_id == actor._actor_id.hex()
    assert (here.job_id, here.node_id) == (context.get_job_id(), context.get_node_id())
    assert (here.class_name, here.number, here.max_restarts) == ("Knows", 0, 4)
    assert here.pid != os.getpid()
    assert death is None
    assert Incarnation.current().actor_id == ""


# -- what outlives it


def test_memory_keeps_what_was_saved_last(memory):
    """Plain JSON types come back; parts do not mix; what is deleted is gone."""
    other = ActorMemory("other")
    assert memory.load() == {}
    assert memory.save({"rung": 1, "applied": ["eager"]})
    assert memory.save({"rung": 2})
    assert memory.load() == {"rung": 2}
    assert other.load() == {}
    memory.delete()
    assert memory.load() == {}


def test_memory_parts_and_actors_are_apart(fake_table):
    """The engine's word and the process's are two."""
    one, two = ActorMemory("a", "process"), ActorMemory("a", "engine")
    one.save({"x": 1})
    assert two.load() == {}
    assert [namespace for namespace, _ in fake_table.rows] == [b"rayguard"]


def errors():
    return TALLY.guard_errors["memory"]


@pytest.mark.parametrize("values", [{"x": object()}, {"x": "y" * (300 << 10)}], ids=["no json", "too large"])
def test_what_cannot_be_kept_is_counted_and_not_raised(values, fake_table):
    """The actor goes on."""
    before = errors()
    assert ActorMemory("a").save(values) is False
    assert errors() == before + 1


def test_without_ray_there_is_no_memory_and_no_error_for_nobody(monkeypatch):
    """An object outside an actor has no id to keep anything under; an actor without a table is counted."""
    before = errors()
    assert ActorMemory("").load() == {}
    assert ActorMemory("").save({}) is False
    ActorMemory("").delete()
    assert errors() == before

    def gone():
        raise ConnectionError

    monkeypatch.setattr(kv, "_client", gone)
    assert ActorMemory("a").load() == {}
    assert ActorMemory("a").save({}) is False
    ActorMemory("a").delete()
    assert errors() == before + 3


@pytest.mark.parametrize("row", [b"torn {", b'{"version": 99, "values": {}}', b"[]"])
def test_a_record_that_is_not_ours_is_nothing(row, fake_table):
    """Of a newer rayguard, or torn."""
    before = errors()
    fake_table.rows[b"rayguard", b"actor:a:state"] = row
    assert ActorMemory("a").load() == {}
    assert errors() == before + 1


# -- when enough is enough


@pytest.fixture
def life(monkeypatch, tmp_path, fake_table):
    """Pretend to be the actor in a given life: returns what enters it."""
    monkeypatch.setenv("RAYGUARD_HOME", str(tmp_path))
    monkeypatch.setattr(incidents, "_last_written", {})
    monkeypatch.setattr(restarts, "inside_ray_worker", lambda: True)
    alive = []
    monkeypatch.setattr(restarts, "this_actor", lambda: alive[-1] if alive else None)
    died = PastDeath(pid=77, at=time.time() - 1.5, how="SYSTEM_ERROR: connection closed")
    monkeypatch.setattr(PastDeath, "before_this", staticmethod(lambda: died))

    def enter(number, cls):
        monkeypatch.setattr(restarts, "hands", restarts.LifeHands())
        monkeypatch.setattr(current_life, "state", current_life.LifeState(Incarnation()))
        now = Incarnation(actor_id="abc", number=number, max_restarts=-1)
        monkeypatch.setattr(incarnation.Incarnation, "current", classmethod(lambda _: now))
        alive.append(cls.__new__(cls))  # as Ray does it: the actor is known before its __init__ runs
        alive[-1].__init__()
        return alive[-1]

    return enter


def actor_class(state="none", **options):
    @guard(policy=GuardPolicy(process_budget=BUDGET), state=state, **options)
    class Actor:
        ready = False

        def __init__(self):
            self.ready = True

        def work(self):
            return "worked"

    return Actor


def word():
    return ActorMemory("abc", "process")


def journal():
    from rayguard.recovery.journal import default_journal

    return default_journal().read()


def test_a_first_life_leaves_no_trace(life, fake_table):
    """A healthy actor costs Ray's table nothing."""
    assert life(0, actor_class()).work() == "worked"
    assert not fake_table.rows
    assert not journal()


def test_lives_are_counted_until_the_budget_is_spent(life):
    """Two restarts are allowed; the third life answers each call with the whole story."""
    cls = actor_class()
    for number in range(3):
        assert life(number, cls).work() == "worked"
    last = life(3, cls)
    assert last.ready is False
    for _ in range(2):
        with pytest.raises(GaveUpError) as caught:
            last.work()
    assert caught.value.tried == ("restart_process", "restart_process")
    assert incident_of(caught.value).outcome is Outcome.FAILED
    assert [i.outcome for i in journal()] == [Outcome.RECOVERED, Outcome.RECOVERED, Outcome.FAILED]
    with pytest.raises(GaveUpError):
        life(4, cls).work()


def test_a_death_is_told_although_the_life_it_led_to_never_served(life):
    """That life died in its ``__init__``, say: the next one tells of both."""

    @guard(policy=GuardPolicy(process_budget=BUDGET), state="none")
    class Actor:
        dies = True

        def __init__(self):
            if self.dies:
                raise KeyboardInterrupt  # no error of the user's, as a SIGKILL is none

        def work(self):
            return "worked"

    with pytest.raises(KeyboardInterrupt):
        life(1, Actor)
    Actor.dies = False
    assert life(2, Actor).work() == "worked"
    first, second = journal()
    assert (first.incarnation, first.outcome) == (0, Outcome.FAILED)
    assert "ended before it served" in first.notes[-1]
    assert (second.incarnation, second.outcome) == (1, Outcome.RECOVERED)
    assert not word().load()["unserved"]


def test_restarts_long_ago_do_not_count(life):
    """The budget is a rate."""
    word().save({"restarts": [time.time() - 101, time.time() - 200, time.time() - 50]})
    assert life(4, actor_class()).work() == "worked"
    assert len(word().load()["restarts"]) == 2


def test_the_incident_a_life_left_word_of_is_closed_by_the_next(life):
    """With the time until the actor served again; once only."""
    opened = Incident(
        id="one", kind="cuda_device_assert", scope="process", cause="because", detected_at=time.time() - 3
    )
    word().save({"restarts": [], "incident": opened.to_json()})
    cls = actor_class()
    life(1, cls)
    (incident,) = journal()
    assert (incident.id, incident.outcome) == ("one", Outcome.RECOVERED)
    assert 3 <= incident.recover_s < 10
    life(2, cls)
    assert [i.id == "one" for i in journal()].count(True) == 1
    assert len(journal()) == 2


@pytest.mark.parametrize("left_word", [True, False])
def test_an_actor_that_began_anew_is_not_called_recovered(left_word, life, capfd):
    """Ray restarted it as its user asked, and what it held is gone: that is loud, and told once."""
    if left_word:
        opened = Incident(id="one", kind="cuda_device_assert", scope="process", cause="because")
        word().save({"restarts": [], "incident": opened.to_json()})
    actor = life(1, actor_class(state=None))
    assert [actor.work(), actor.work()] == ["worked", "worked"]
    (incident,) = journal()
    assert incident.outcome is Outcome.STATE_LOST
    assert any("began it anew" in note for note in incident.notes)
    assert incident.recover_s is not None
    lines = [line for line in capfd.readouterr().err.splitlines() if line.startswith("rayguard:")]
    assert len(lines) == 1
    assert "Actor" in lines[0]
    assert incident.cause in lines[0]
    assert "what it held is gone" in lines[0]


def test_an_actor_that_ray_restarts_as_its_user_asked_is_not_given_up(life):
    """How often is the user's word to Ray; each of its new beginnings is told."""
    cls = actor_class(state=None)
    for number in range(6):
        assert life(number, cls).work() == "worked"
    assert [i.outcome for i in journal()] == [Outcome.STATE_LOST] * 5
    assert [i.incarnation for i in journal()] == list(range(5))


def test_a_death_nobody_left_word_of_is_known_from_ray(life):
    """What Ray saw is the evidence, without its guesses."""
    life(1, actor_class())
    (incident,) = journal()
    assert (incident.scope, incident.pid, incident.incarnation) == ("process", 77, 0)
    assert 1.5 <= incident.recover_s < 10
    assert "SYSTEM_ERROR: connection closed" in incident.cause


@pytest.mark.parametrize(("role", "lost"), [(Role.ACTOR, 0), (Role.ROLLOUT, None)])
@pytest.mark.parametrize("left_word", [True, False])
def test_tokens_of_an_engine_that_died_with_its_process_are_unknown(life, monkeypatch, role, lost, left_word):
    """Not 0: that would be a claim. The journal keeps it."""
    cls = actor_class()
    mark = dataclasses.replace(mark_of(cls), role=role)
    monkeypatch.setattr(life_entry, "mark_of", lambda _: mark)
    if left_word:
        opened = Incident(id="one", kind="cuda_device_assert", scope="process", cause="because")
        word().save({"restarts": [], "incident": opened.to_json()})
    life(1, cls)
    (incident,) = journal()
    assert incident.tokens_lost is lost or incident.tokens_lost == lost
    assert incident.tokens_told == ("0 saved, loss unknown" if lost is None else "0 saved, 0 lost")


@pytest.mark.parametrize(
    ("told", "untold"), [(0, [10, 11]), (10, [11]), (11, []), (12, [10, 11]), (99, [10, 11])]
)
def test_deaths_that_no_life_told_of_are_found(monkeypatch, told, untold):
    """All between the last one that was told and the last of all, which the life that follows it tells."""
    row = SimpleNamespace(earlier=[PastLife("n", name) for name in ("w10", "w11", "w12")])
    monkeypatch.setattr(incarnation, "this_actor_id", lambda: "abc")
    monkeypatch.setattr(incarnation, "actor_row", lambda _: row)
    dead = {f"w{pid}": SimpleNamespace(pid=pid, at=1.0, said="", kind="SYSTEM_ERROR") for pid in (10, 11, 12)}
    monkeypatch.setattr(incarnation, "worker_row", dead.get)
    assert [(number, death.pid) for number, death in PastDeath.untold(told)] == [
        (pid - 10, pid) for pid in untold
    ]


def test_a_life_tells_of_the_lives_that_ended_before_they_could(life, monkeypatch):
    """An actor that is only watched: rayguard arrives in a process a moment after it began."""
    early = PastDeath(pid=66, at=time.time() - 3.0, how="INTENDED_USER_EXIT: sys.exit")
    monkeypatch.setattr(PastDeath, "untold", staticmethod(lambda told: [] if told == 66 else [(0, early)]))
    life(2, guard(type("Plain", (), {"__init__": lambda self: None})))
    found = {incident.pid: incident for incident in journal()}
    assert set(found) == {66, 77}
    assert (found[66].outcome, found[66].incarnation) == (Outcome.STATE_LOST, 0)
    assert any("ended before it could tell" in note for note in found[66].notes)


@pytest.mark.parametrize(
    ("code", "said"), [(-11, "killed by signal 11"), (3, "exited with code 3"), (None, "SIGKILL")]
)
def test_a_death_is_told_with_what_is_known_of_its_end(life, monkeypatch, code, said):
    """Exit code or signal where somebody wrote it down, and otherwise what it can have been."""
    died = PastDeath(pid=77, at=time.time(), how="SYSTEM_ERROR: connection closed", exitcode=code)
    monkeypatch.setattr(PastDeath, "before_this", staticmethod(lambda: died))
    life(1, actor_class())
    assert said in journal()[0].cause
    assert "process 77" in journal()[0].cause


@pytest.mark.parametrize("broken", ["mark", "memory", "journal", "diagnosed", "death"])
def test_a_bug_at_the_start_of_a_life_does_not_stop_the_actor(broken, life, monkeypatch):
    """It works as it would have, and the bug is counted."""

    def explode(*_args, **_kwargs):
        raise RuntimeError("a bug in rayguard")

    cls = actor_class()
    if broken == "memory":
        monkeypatch.setattr(kv, "_client", explode)
    if broken == "journal":
        monkeypatch.setattr("rayguard.recovery.journal.default_journal", explode)
    if broken == "diagnosed":
        monkeypatch.setattr(incidents, "diagnosed", explode)
    if broken == "death":
        monkeypatch.setattr(PastDeath, "before_this", staticmethod(explode))
    before = sum(TALLY.guard_errors.values())
    if broken == "mark":
        monkeypatch.setattr(life_entry, "mark_of", explode)
    actor = life(1, cls)
    assert actor.ready
    assert actor.work() == "worked"
    assert sum(TALLY.guard_errors.values()) > before


def test_the_budget_holds_although_the_catalog_is_broken(life, monkeypatch):
    """Never worse is not enough here: a loop without end would be."""

    def explode(_):
        raise RuntimeError("a bug in rayguard")

    monkeypatch.setattr(incidents, "diagnosed", explode)
    word().save({"restarts": [time.time() - 2, time.time() - 1]})
    with pytest.raises(GaveUpError):
        life(3, actor_class()).work()


def test_who_comes_while_the_life_is_entered_aside_waits_for_its_incident(life, monkeypatch):
    """The plugin enters it from a thread of its own: the incident is there when ``__init__`` is done."""
    asked, may_go = threading.Event(), threading.Event()
    before_this = PastDeath.before_this

    def slowly():
        asked.set()
        assert may_go.wait(30)
        return before_this()

    monkeypatch.setattr(PastDeath, "before_this", staticmethod(slowly))
    cls, begin = actor_class(), restarts.begin
    aside = []

    def begun(instance):
        if not aside:  # the thread aside was first
            aside.append(threading.Thread(target=begin, args=(instance,)))
            aside[0].start()
            assert asked.wait(30)
            threading.Timer(0.2, may_go.set).start()
        return begin(instance)

    monkeypatch.setattr(restarts, "begin", begun)
    assert life(1, cls).work() == "worked"
    aside[0].join(30)
    assert [one.outcome for one in journal()] == [Outcome.RECOVERED]
    assert current_life.state.incident is None
    assert not restarts.hands.asks


def test_a_guarded_part_of_an_actor_does_not_close_its_incident(life):
    """Made and called within ``__init__``, which may still fail: the actor works when it is done."""
    seen = []

    @guard
    class Part:
        def __init__(self):
            self.ready = True

        def work(self):
            return self.ready

    @guard(policy=GuardPolicy(process_budget=BUDGET), state="none")
    class Whole:
        def __init__(self):
            self.works = Part().work()
            seen.append((current_life.state.incident is not None, len(journal())))

        def work(self):
            return self.works

    assert life(1, Whole).work()
    assert seen == [(True, 0)]
    assert [one.outcome for one in journal()] == [Outcome.RECOVERED]


def test_another_guarded_object_in_the_process_has_no_life_to_count(life):
    """A helper inside somebody else's actor is not stopped by that actor's restarts."""

    @guard
    class Helper:
        def __init__(self):
            self.ready = True

        def work(self):
            return self.ready

    class Unguarded:
        def __init__(self):
            self.helper = Helper()

    word().save({"restarts": [time.time()] * 9})
    assert life(9, Unguarded).helper.work()
    assert not restarts.hands.asks
    given_up = life(9, actor_class())
    assert Helper().work()
    with pytest.raises(GaveUpError):
        given_up.work()
