"""What an actor's state is kept by, without Ray: which moment is kept, and what a death would find."""

import os
import sys
import threading
import time
import tracemalloc

import pytest

from rayguard.actors.guard import restarts
from rayguard.actors.guard.guard import guard, method
from rayguard.actors.life import calls_since, current_life, restorable, saved_state
from rayguard.actors.life.calls_since import replay
from rayguard.actors.life.incarnation import ActorMemory, Incarnation
from rayguard.actors.life.last_answer import Answer
from rayguard.actors.life.snapshot_files import path_of
from rayguard.actors.memory import call_boundary
from rayguard.actors.methods import bare
from rayguard.errors import CallLostError, StateLostError
from rayguard.ray_internals import kv
from rayguard.recovery.actor_life import ActorLife, LifePhase, StateFound
from rayguard.recovery.policy import GuardPolicy, SnapshotPolicy

HERE = Incarnation(actor_id="abc", node_id="n1", number=1, max_restarts=-1)


class Table:
    """Ray's key-value table, in a dict."""

    def __init__(self):
        self.rows = {}

    def internal_kv_get(self, key, namespace, timeout):
        return self.rows.get((namespace, key))

    def internal_kv_put(self, key, value, overwrite, namespace, timeout):
        self.rows[namespace, key] = value

    def internal_kv_del(self, key, by_prefix, namespace, timeout):
        self.rows.pop((namespace, key), None)


@pytest.fixture(autouse=True)
def task(monkeypatch, tmp_path):
    """A home and a table of the test's own; returns a list whose last item is the task that runs."""
    table, tasks = Table(), [""]
    monkeypatch.setenv("RAYGUARD_HOME", str(tmp_path))
    monkeypatch.setattr(kv, "_client", lambda: table)
    for module in (restorable, restarts):
        monkeypatch.setattr(module, "current_task", lambda: tasks[-1])
    return tasks


class Counter:
    """The least that can say its state."""

    def __init__(self, n=0):
        self.n = n

    def state_dict(self):
        return dict(vars(self))

    def load_state_dict(self, state):
        vars(self).update(state)


def kept(instance=None):
    """Return what the next life would begin with, and what it would be told of."""
    found = restorable.found(HERE)
    if found is None:
        return None
    fresh = instance or Counter()
    restorable.restore(fresh, found)
    return fresh.n, found.lost, set(found.running)


def test_the_first_moment_is_the_one_after_init():
    """Before that there is nothing to go on from."""
    keeper = restorable.StateKeeper(Counter(5), HERE)
    assert kept() is None
    keeper.keep()
    assert kept() == (5, 0, set())


def test_each_call_is_kept_at_its_end_and_known_while_it_runs(task):
    """Also one that failed: it may have changed something."""
    counter = Counter()
    keeper = restorable.StateKeeper(counter, HERE)
    keeper.keep()
    for n in range(1, 4):
        task.append(f"task{n}")
        place = keeper.begun("step")
        counter.n = n
        assert kept() == (n - 1, 0, {f"task{n}"})
        keeper.ended(place, "step")
        assert kept()[:2] == (n, 0)


def test_calls_side_by_side_are_kept_when_none_runs(task):
    """A moment within a call is no state; what ended since the last one is counted."""
    counter = Counter()
    keeper = restorable.StateKeeper(counter, HERE)
    keeper.keep()
    places = []
    for n in range(3):
        task.append(f"task{n}")
        places.append(keeper.begun("step"))
    counter.n = 7
    for n, then in ((1, (0, 1, {"task0", "task2"})), (0, (0, 2, {"task2"})), (2, (7, 0, set()))):
        task.append(f"task{n}")
        keeper.ended(places[n], "step")
        assert kept() == then


def called(keeper, counter, task, name):
    """Let a call of this name begin, count, and end."""
    task.append(name)
    place = keeper.begun("step")
    counter.n += 1
    keeper.ended(place, "step")


def leaves(keeper, place, task, name):
    """End a call by `sys.exit`, as the wrappers see it."""
    task.append(name)
    try:
        sys.exit(3)
    except SystemExit:
        keeper.ended(place, name)


def test_what_ends_beside_a_call_that_leaves_is_kept(task):
    """Its process goes on until the others have ended; they were answered, so the next life has what they did."""
    counter = Counter()
    keeper = restorable.StateKeeper(counter, HERE)
    keeper.keep()
    task.append("leaving")
    leaving = keeper.begun("leaves")
    task.append("beside")
    beside = keeper.begun("step")
    leaves(keeper, leaving, task, "leaving")
    assert kept() == (0, 0, {"leaving", "beside"}), "a call that leaves is one that a death cut off"
    counter.n += 1
    task.append("beside")
    keeper.ended(beside, "step", Answer(1))
    assert kept() == (1, 0, set())
    found = restorable.found(HERE)
    assert found.tasks == {"leaving", "beside"}
    assert found.to("beside") == Answer(1)
    assert found.to("leaving") is None, "what it did by then is in the state: it is not made again"


@guard(policy=GuardPolicy(snapshot=SnapshotPolicy(every_calls=3)))
class Seldom(Counter):
    """Kept after each third call."""


def test_between_two_snapshots_calls_are_lost_by_name_and_number(task):
    """As the policy allows; each third call's moment is kept, with the answers of those before."""
    counter = Seldom()
    keeper = restorable.StateKeeper(counter, HERE)
    keeper.keep()
    for n in range(1, 8):
        called(keeper, counter, task, f"task{n}")
        found, since = restorable.found(HERE), n % 3
        assert (found.state["n"], found.lost) == (n - since, since)
        assert found.undone == {f"task{m}" for m in range(n - since + 1, n + 1)}
        assert set(found.answers) == {f"task{m}" for m in range(1, n - since + 1)}


class Ledger(Counter):
    """Its methods say what may run twice."""

    log: tuple = ()

    @method(idempotent=True)
    def put(self, given):
        given.append("changed by the call")
        self.log += (given[0],)
        if given[0] == "refused":
            raise ValueError(given[0])

    def add(self):
        self.n += 1


@guard(policy=GuardPolicy(snapshot=SnapshotPolicy(every_calls=9)))
class Sparse(Ledger):
    """Kept after each ninth call."""


def made(keeper, ledger, task, name, *given):
    """Make a call as the wrappers do: its arguments are kept as it begins."""
    task.append(f"{name}{len(task)}")
    place, answer = keeper.begun(name, (given, {})), None
    try:
        bare(ledger, name)(*given)
        answer = Answer(None)
    except ValueError:
        pass
    finally:
        keeper.ended(place, name, answer)


def next_life(cls):
    """Return the actor of the next life, what it is told to have lost, and its keeper."""
    found, ledger = restorable.found(HERE), cls()
    restorable.restore(ledger, found)
    lost = replay(ledger, found.lost, found.since)
    keeper = restorable.StateKeeper(ledger, HERE, found)
    keeper.keep()
    return ledger, lost, keeper


def test_calls_since_the_snapshot_are_made_again_where_they_may_run_twice(task):
    """With what they were given as they began, in their order; the others are lost by name."""
    ledger = Sparse()
    keeper = restorable.StateKeeper(ledger, HERE)
    keeper.keep()
    made(keeper, ledger, task, "put", ["a"])
    made(keeper, ledger, task, "add")
    made(keeper, ledger, task, "put", ["refused"])
    made(keeper, ledger, task, "put", ["b"])
    ledger, lost, keeper = next_life(Sparse)
    assert (ledger.log, ledger.n, lost) == (("a", "refused", "b"), 0, ("add",))
    made(keeper, ledger, task, "put", ["c"])
    ledger, lost, _ = next_life(Sparse)
    assert (ledger.log, lost) == (("a", "refused", "b", "c"), ()), "those of the life before are in its state"


def test_what_a_call_that_leaves_was_given_is_no_other_calls(task, monkeypatch):
    """Its place is given to the next one, which may not run twice."""
    monkeypatch.setattr("rayguard.process.snapshot_file._MOST_RUNNING", 2)

    @guard(policy=GuardPolicy(snapshot=SnapshotPolicy(every_calls=9)))
    class Taking(Ledger):
        def add(self, given=None):
            self.n += 1

    ledger = Taking()
    keeper = restorable.StateKeeper(ledger, HERE)
    keeper.keep()
    task.append("leaving")
    leaving = keeper.begun("put", ((["left"],), {}))
    leaves(keeper, leaving, task, "leaving")
    task.append("")
    keeper.keep()
    for _ in range(2):
        made(keeper, ledger, task, "add")
    ledger, lost, _ = next_life(Taking)
    assert (ledger.n, lost) == (0, ("add", "add"))


def test_what_cannot_be_made_again_is_lost_by_name(task):
    """Its arguments cannot be packed; it fails now and did not then; it is there no more."""
    ledger = Sparse()
    keeper = restorable.StateKeeper(ledger, HERE)
    keeper.keep()
    made(keeper, ledger, task, "put", ["a", threading.Lock()])
    made(keeper, ledger, task, "put", ["b"])

    class Fails(Sparse):
        def put(self, given):
            raise RuntimeError("now")

    assert next_life(Fails)[1] == ("put", "put")


def test_calls_that_fill_the_log_have_the_state_kept(task, monkeypatch):
    """It does not grow without end, and no death has more made again than that."""
    monkeypatch.setattr(calls_since, "_MOST_BYTES", 4_000)
    ledger = Sparse()
    keeper = restorable.StateKeeper(ledger, HERE)
    keeper.keep()
    for n in range(6):
        made(keeper, ledger, task, "put", [n, bytes(1_500)])
    found = restorable.found(HERE)
    assert found.lost == len(found.since) < 4
    assert next_life(Sparse)[0].log == tuple(range(6))


def test_where_the_state_is_kept_after_each_call_nothing_is_noted(task):
    """Not even the file is there."""
    ledger = Ledger()
    keeper = restorable.StateKeeper(ledger, HERE)
    keeper.keep()
    made(keeper, ledger, task, "put", ["a"])
    assert not calls_since.log_of(path_of(HERE)).exists()


def test_a_call_that_ended_before_two_deaths_is_still_known(task):
    """Ray may repeat it in the life after the next one, too."""
    counter = Seldom()
    keeper = restorable.StateKeeper(counter, HERE)
    keeper.keep()
    called(keeper, counter, task, "early")
    for _ in range(2):
        found = restorable.found(HERE)
        assert "early" in found.running | found.undone
        restorable.StateKeeper(Seldom(), HERE, found).keep()


def test_seconds_between_two_snapshots(task, monkeypatch):
    """At the first end of a call after them."""

    @guard(policy=GuardPolicy(snapshot=SnapshotPolicy(every_s=10.0)))
    class Timed(Counter):
        pass

    now = [1000.0]
    monkeypatch.setattr(restorable.time, "monotonic", lambda: now[0])
    counter = Timed()
    keeper = restorable.StateKeeper(counter, HERE)
    keeper.keep()
    for n, (at, then) in enumerate(
        [(5.0, (0, 1)), (9.9, (0, 2)), (10.0, (3, 0)), (19.0, (3, 1)), (99.0, (5, 0))]
    ):
        now[0] = 1000.0 + at
        called(keeper, counter, task, f"task{n}")
        assert kept(Timed())[:2] == then


def test_what_was_due_while_another_call_ran_is_kept_when_none_does(task):
    """A call that ends within another is not the third, but the next that may be kept is."""
    counter = Seldom()
    keeper = restorable.StateKeeper(counter, HERE)
    keeper.keep()
    task.append("long")
    place = keeper.begun("step")
    for n in range(4):
        called(keeper, counter, task, f"task{n}")
    assert kept(Seldom()) == (0, 4, {"long"})
    task.append("long")
    keeper.ended(place, "step")
    assert kept(Seldom()) == (4, 0, set())


def test_the_answer_of_a_call_that_no_task_made_is_not_kept(task):
    """It is of a thread of the user's, and the next life's thread would get it for another call."""
    counter = Counter()
    keeper = restorable.StateKeeper(counter, HERE)
    for name in ("", "task1", ""):
        called(keeper, counter, task, name)
    found = restorable.found(HERE)
    assert (found.state["n"], found.tasks) == (3, {"task1"})


def test_of_many_large_answers_the_last_are_kept(task):
    """What a snapshot has besides the state is bounded; of the others it is known that they were given."""
    counter = Counter()
    keeper = restorable.StateKeeper(counter, HERE)
    for n, size in enumerate([1, 3 << 20, 2 << 20, 9 << 20, 1, 1]):
        task.append(f"task{n}")
        keeper.ended(keeper.begun("step"), "step", Answer(bytes(size)))
    found = restorable.found(HERE).answers
    assert [call for call, packed in found.items() if packed] == ["task0", "task2", "task4", "task5"]
    left = restorable.KeptState({}, 0, frozenset(), found)
    assert left.to("task2") == Answer(bytes(2 << 20))
    assert left.to("task1") is None


@pytest.mark.parametrize("kind", ["bytes", "array", "tensor", "tensors"])
def test_an_answer_that_is_too_large_to_keep_is_not_copied(kind):
    """A trainer that returns all of its weights, after each step: the copies would take as much again."""
    numpy, torch = pytest.importorskip("numpy"), pytest.importorskip("torch")
    size = 64 << 20
    answer = {
        "bytes": lambda: bytes(size),
        "array": lambda: numpy.ones(size, numpy.uint8),
        "tensor": lambda: torch.ones(size, dtype=torch.uint8),
        "tensors": lambda: [torch.ones(size // 64, dtype=torch.uint8) for _ in range(64)],
    }[kind]()
    restorable._packed(Answer(0))  # what is loaded for it is another matter
    tracemalloc.start()
    try:
        assert restorable._packed(Answer(answer)) is None
        assert tracemalloc.get_traced_memory()[1] < size // 4
    finally:
        tracemalloc.stop()


def test_a_forked_child_keeps_nothing(monkeypatch):
    """It has the parent's file mapped, and what it does is not the actor's state."""
    monkeypatch.setattr(call_boundary, "keeper", object())
    monkeypatch.setattr(call_boundary, "watch", object())
    child = os.fork()
    if not child:
        os._exit(0 if (call_boundary.keeper, call_boundary.watch, call_boundary.group) == (None,) * 3 else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert call_boundary.keeper is not None


def test_calls_within_a_call_are_none_of_their_own(task):
    """A method that calls another one: a death between them cuts one call off, and loses none."""
    counter = Counter()
    keeper = restorable.StateKeeper(counter, HERE)
    keeper.keep()
    task.append("outer")
    outer = keeper.begun("step")
    keeper.ended(keeper.begun("step"), "step")
    assert kept() == (0, 0, {"outer"})
    counter.n = 1
    keeper.ended(outer, "step")
    assert kept()[:2] == (1, 0)


def test_what_the_keeping_itself_calls_is_no_call():
    """``state_dict`` may be guarded, and call others."""

    class Guarded(Counter):
        def state_dict(self):
            place = keeper.begun("step")
            try:
                return super().state_dict()
            finally:
                keeper.ended(place, "step")

    keeper = restorable.StateKeeper(Guarded(3), HERE)
    keeper.keep()
    keeper.ended(keeper.begun("step"), "step")
    assert kept()[:2] == (3, 0)


@pytest.mark.parametrize("failing", ["state_dict", "pickle"])
def test_what_cannot_be_kept_is_counted_and_stops_nothing(failing, task):
    """The last moment stays, with the number of calls since."""
    counter, broken = Counter(2), False

    def state_dict():
        if broken and failing == "state_dict":
            raise RuntimeError("not now")
        return {"n": counter.n, "lock": threading.Lock() if broken else None}

    counter.state_dict = state_dict
    keeper = restorable.StateKeeper(counter, HERE)
    keeper.keep()
    broken = True
    for n in range(3):
        task.append(f"task{n}")
        place = keeper.begun("step")
        counter.n += 1
        keeper.ended(place, "step")
    assert kept()[:2] == (2, 3)
    broken = False
    keeper.ended(keeper.begun("step"), "step")
    assert kept()[:2] == (5, 0)


def test_one_that_was_kept_and_is_not_there_is_no_new_beginning():
    """Its node is gone, or somebody has removed it."""
    restorable.StateKeeper(Counter(1), HERE).keep()
    path_of(HERE).unlink()
    with pytest.raises(StateLostError, match="not there any more"):
        restorable.found(HERE)


def test_one_that_is_damaged_is_no_new_beginning():
    """It says which file."""
    restorable.StateKeeper(Counter(1), HERE).keep()
    path_of(HERE).write_bytes(b"torn")
    with pytest.raises(StateLostError, match=r"abc-\.snapshot"):
        restorable.found(HERE)


def test_one_that_the_class_does_not_take_is_no_new_beginning():
    """Its author changed what it expects."""

    class Changed(Counter):
        def load_state_dict(self, state):
            raise KeyError("m")

    restorable.StateKeeper(Counter(1), HERE).keep()
    with pytest.raises(StateLostError, match="Changed does not take its last state"):
        kept(Changed())
    with pytest.raises(StateLostError, match="no longer has load_state_dict"):
        restorable.restore(object(), restorable.found(HERE))


def test_a_life_on_another_node_has_it_read_where_it_lies(monkeypatch):
    """Ray may start the next life anywhere."""
    restorable.StateKeeper(Counter(4), HERE).keep()
    ActorMemory("abc", "snapshot").save({"node": "n2"})
    asked = []
    monkeypatch.setattr(saved_state, "call_on", lambda node, do, path: asked.append(node) or do(path))
    assert kept()[:2] == (4, 0)
    assert asked == ["n2"]


def test_many_threads_leave_a_whole_moment():
    """Calls of a threaded actor begin and end side by side."""
    counter, lock = Counter(), threading.Lock()
    keeper = restorable.StateKeeper(counter, HERE)
    keeper.keep()

    def calls():
        for _ in range(50):
            place = keeper.begun("step")
            with lock:
                counter.n += 1
            keeper.ended(place, "step")

    threads = [threading.Thread(target=calls) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert kept()[:2] == (400, 0)


# -- who is let through


@guard
class Actor:
    """One method of each kind."""

    def once(self):
        pass

    @method(idempotent=True)
    def often(self):
        pass


@pytest.fixture
def admit(monkeypatch):
    """Be an actor whose last life was cut off in some calls; returns what a call of it passes first."""

    def begun(actor, *cut_off):
        monkeypatch.setattr(restarts, "hands", restarts.LifeHands())
        monkeypatch.setattr(restarts, "this_actor", lambda: actor)
        life = ActorLife(phase=LifePhase.BEGUN)
        monkeypatch.setattr(current_life, "state", current_life.LifeState(HERE, life))
        restarts._step(StateFound(now=time.monotonic(), cut_off=frozenset(cut_off)))
        return restarts.admit

    return begun


def test_what_was_cut_off_and_must_not_run_twice_is_answered_once(task, admit):
    """By its own name; others pass, and so does a new call of the same method."""
    actor = Actor()
    passes = admit(actor, "one", "two", "three")
    task.append("new")
    assert passes(actor, "once") is None
    task.append("one")
    assert passes(Actor(), "once") is None, "another object's call"
    with pytest.raises(CallLostError, match=r"Actor\.once was cut off"):
        passes(actor, "once")
    task.append("two")
    assert passes(actor, "often") is None
    assert restarts.hands.asks
    task.append("three")
    with pytest.raises(CallLostError):
        passes(actor, "once")
    assert not restarts.hands.asks, "all of them have come"


def test_the_class_says_what_its_methods_do_not(task, admit):
    """``guard(idempotent=True)``, but for a method that says no."""

    @guard(idempotent=True)
    class Freely:
        def often(self):
            pass

        @method(idempotent=False)
        def once(self):
            pass

    actor = Freely()
    passes = admit(actor, "one", "two")
    task.append("one")
    assert passes(actor, "often") is None
    task.append("two")
    with pytest.raises(CallLostError):
        passes(actor, "once")
