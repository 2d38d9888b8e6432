"""Actors that can say their state, on a real Ray: after any death they go on from it, or it is told what is lost."""

from __future__ import annotations

import asyncio
import importlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import ray

import rayguard
from rayguard.errors import CallLostError
from rayguard.recovery.incident import Outcome

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("cluster")]

WAIT_S = 150  # for a busy machine: a deadline, no measure
BUDGET = rayguard.GuardPolicy(process_budget=rayguard.RestartBudget(max_restarts=1000, within_s=1000.0))


class Trainer:
    """Its state is a number; each test guards a copy."""

    def __init__(self, folder=""):
        self.n, self.folder = 0, folder

    def step(self):
        self.n += 1
        return self.n

    def slow(self):
        """Take effect, then be cut off."""
        self.note("slow")
        self.n += 1
        if self.times("slow") == 1:
            threading.Event().wait(WAIT_S)
        return self.n

    def kill(self):
        os.kill(os.getpid(), signal.SIGKILL)

    def value(self):
        return self.n

    def pid(self):
        return os.getpid()

    def note(self, what):
        with (Path(self.folder) / what).open("a") as file:
            file.write(f"{os.getpid()}\n")

    def times(self, what):
        return times(self.folder, what)


class Saved(Trainer):
    def state_dict(self):
        return {"n": self.n}

    def load_state_dict(self, state):
        self.n = state["n"]


def times(folder, what):
    """Return how often ``what`` was noted."""
    path = Path(folder) / what
    return len(path.read_text().splitlines()) if path.exists() else 0


def made(base, *arguments, options=None, guard=rayguard.guard, **changes):
    """Create a guarded actor of a class of its own."""
    cls = guard(type(base.__name__, (base,), {"__module__": __name__, **changes}))
    return ray.remote(num_cpus=0, **(options or {}))(cls).remote(*arguments)


def get(ref):
    return ray.get(ref, timeout=WAIT_S)


def seen(ref):
    """Return what the caller gets: an answer, or the name of the error."""
    try:
        return get(ref)
    except CallLostError:
        return "lost"
    except ray.exceptions.RayTaskError:
        return "error"
    except ray.exceptions.RayError as error:
        return type(error).__name__


def until(condition, limit_s=60.0):
    deadline = time.monotonic() + limit_s
    while not (found := condition()):
        assert time.monotonic() < deadline, "waited in vain"
        threading.Event().wait(0.02)
    return found


def end(actor):
    """Kill the actor's process, and wait until Ray knows it: what is called now meets the next life."""
    pid = get(actor.pid.remote())
    os.kill(pid, signal.SIGKILL)
    until(lambda: not Path(f"/proc/{pid}").exists())
    threading.Event().wait(0.5)
    return pid


def journal(actor):
    from rayguard.recovery.journal import default_journal

    return [one for one in default_journal().read() if one.actor_id == actor._actor_id.hex()]


def snapshots():
    return sorted((Path(os.environ["RAYGUARD_HOME"]) / "snapshots").glob("*"))


# -- never worse: what was seen before


def steps_around_a_kill(decorate, base):
    """Step six times; the process is killed before the fourth. What the user sees."""
    actor, log = ray.remote(num_cpus=0)(decorate(type(base.__name__, (base,), {}))).remote(), []
    while len(log) < 6 and "ActorDiedError" not in log:
        if len(log) == 3:
            end(actor)
        log.append(seen(actor.step.remote()))
    return log, actor


@pytest.mark.parametrize(
    ("decorate", "base", "seen"),
    [
        (lambda cls: cls, Trainer, [1, 2, 3, "ActorDiedError"]),
        (rayguard.guard, Trainer, [1, 2, 3, "ActorDiedError"]),
        (rayguard.guard, Saved, [1, 2, 3, 4, 5, 6]),
        (rayguard.guard(memory=rayguard.MemoryPolicy()), Saved, [1, 2, 3, 4, 5, 6]),
        (rayguard.guard(memory=None), Saved, [1, 2, 3, 4, 5, 6]),
    ],
    ids=["bare", "unsaid", "saved", "saved and watched", "saved and not watched"],
)
def test_an_actor_that_is_killed_between_two_calls(decorate, base, seen):
    """It began anew, and no line, no incident said so. It goes on, or its death is as loud as bare."""
    log, actor = steps_around_a_kill(decorate, base)
    assert log == seen
    if seen[-1] == 6:
        (incident,) = journal(actor)
        assert (incident.kind, incident.outcome) == ("actor_died", Outcome.RECOVERED)


PASSING = {
    "judge": lambda _: ConnectionError(
        "HTTPConnectionPool(host='judge', port=8000): Read timed out. (read timeout=30)"
    ),
    "memory": lambda load: load("torch").OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    "pool": lambda load: load("concurrent.futures.process").BrokenProcessPool("a child process terminated"),
    "time": lambda _: TimeoutError("timed out"),
    "disk": lambda _: OSError(5, "Input/output error"),
    "hub": lambda load: load("requests").exceptions.HTTPError("429 Client Error: Too Many Requests for url"),
}


def raises_once(error):
    def step(self):
        if self.n == 3 and not self.times("raised"):
            self.note("raised")
            raise PASSING[error](importlib.import_module)
        self.n += 1
        return self.n

    return step


@pytest.mark.parametrize("error", PASSING)
@pytest.mark.parametrize("base", [Trainer, Saved])
def test_one_passing_error_costs_no_step_and_no_process(error, base, tmp_path):
    """Never fewer steps than bare; the process lives on."""
    actor = made(base, str(tmp_path), step=raises_once(error))
    pid = get(actor.pid.remote())
    assert [seen(actor.step.remote()) for _ in range(6)] == [1, 2, 3, "error", 4, 5]
    assert get(actor.pid.remote()) == pid
    assert [one.outcome for one in journal(actor)] == [Outcome.ANSWERED]


# -- calls that were cut off


def test_a_call_that_must_not_run_twice_is_told_as_lost_and_the_actor_goes_on(tmp_path):
    """By its name; the state is as it was before it."""
    actor = made(Saved, str(tmp_path))
    assert [get(actor.step.remote()) for _ in range(2)] == [1, 2]
    pid = get(actor.pid.remote())
    cut = actor.slow.remote()
    until(lambda: times(tmp_path, "slow") == 1)
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(CallLostError, match=r"Saved\.slow was cut off") as caught:
        get(cut)
    assert caught.value.target == "Saved.slow"
    assert times(tmp_path, "slow") == 1
    assert get(actor.step.remote()) == 3
    assert [one.outcome for one in journal(actor)] == [Outcome.RECOVERED]


@pytest.mark.parametrize("said", ["class", "method"])
def test_a_call_that_may_run_twice_is_made_again_on_the_state_before_it(said, tmp_path):
    """What it did before the death is undone with its process."""
    if said == "class":
        actor = made(Saved, str(tmp_path), guard=rayguard.guard(idempotent=True))
    else:
        actor = made(Saved, str(tmp_path), slow=rayguard.method(idempotent=True)(copy_of(Trainer.slow)))
    assert [get(actor.step.remote()) for _ in range(2)] == [1, 2]
    pid = get(actor.pid.remote())
    cut = actor.slow.remote()
    until(lambda: times(tmp_path, "slow") == 1)
    os.kill(pid, signal.SIGKILL)
    assert get(cut) == 3
    assert times(tmp_path, "slow") == 2
    assert get(actor.step.remote()) == 4
    assert [one.outcome for one in journal(actor)] == [Outcome.RECOVERED]


def copy_of(function):
    import types

    return types.FunctionType(function.__code__, function.__globals__, function.__name__)


def test_calls_that_waited_for_their_turn_are_answered_by_the_next_life(tmp_path):
    """They had not begun: nothing of them is lost, and none is made twice."""
    actor = made(Saved, str(tmp_path))
    pid = get(actor.pid.remote())
    cut = actor.slow.remote()
    waiting = [actor.step.remote() for _ in range(10)]
    until(lambda: times(tmp_path, "slow") == 1)
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(CallLostError):
        get(cut)
    assert sorted(ray.get(waiting, timeout=WAIT_S)) == list(range(1, 11))


def test_a_call_that_kills_its_process_each_time_does_not_do_so_for_ever(tmp_path):
    """It must not run twice: it is told as lost after the first time."""
    actor = made(Saved, str(tmp_path))
    get(actor.step.remote())
    with pytest.raises(CallLostError):
        get(actor.kill.remote())
    assert get(actor.step.remote()) == 2


def test_a_second_death_does_not_forget_what_the_first_cut_off(tmp_path):
    """The next life dies as soon as it has kept its own first state, before Ray has repeated the call."""

    def state_dict(self):
        if times(self.folder, "slow") and not times(self.folder, "second"):
            (Path(self.folder) / "second").write_text("once\n")
            path = snapshots()[-1]
            threading.Thread(target=kill_once_it_is_replaced, args=(path, path.stat().st_ino)).start()
        return {"n": self.n}

    def kill_once_it_is_replaced(path, before):
        while path.stat().st_ino == before:
            threading.Event().wait(0.001)
        os.kill(os.getpid(), signal.SIGKILL)

    for left in snapshots():
        left.unlink()
    actor = made(Saved, str(tmp_path), state_dict=state_dict)
    get(actor.step.remote())
    pid = get(actor.pid.remote())
    cut = actor.slow.remote()
    until(lambda: times(tmp_path, "slow") == 1)
    os.kill(pid, signal.SIGKILL)
    assert seen(cut) == "lost"
    until(lambda: len(journal(actor)) == 2)
    assert times(tmp_path, "slow") == 1
    assert get(actor.step.remote()) == 2


@pytest.mark.parametrize("idempotent", [True, False])
def test_a_poisoned_process_is_replaced_and_the_next_one_goes_on(idempotent, tmp_path):
    """Proved to be of no more use, and what it held is not lost: the call is repeated where it may be."""

    def step(self):
        self.n += 1
        if self.n == 3 and not times(self.folder, "poisoned"):
            (Path(self.folder) / "poisoned").write_text("once\n")
            self.n -= 1
            raise RuntimeError("CUDA error: device-side assert triggered")
        return self.n

    actor = made(Saved, str(tmp_path), guard=rayguard.guard(idempotent=idempotent), step=step)
    pid = get(actor.pid.remote())
    log = [seen(actor.step.remote()) for _ in range(5)]
    assert log == ([1, 2, 3, 4, 5] if idempotent else [1, 2, "error", 3, 4])
    assert get(actor.pid.remote()) != pid
    (incident,) = journal(actor)
    assert (incident.kind, incident.outcome) == ("cuda_device_assert", Outcome.RECOVERED)


def test_a_death_while_the_state_is_kept_makes_no_call_twice(tmp_path):
    """The call is over, its answer is not delivered, and the snapshot is not yet current."""

    def state_dict(self):
        if self.n == 3 and not self.times("kept"):
            self.note("kept")
            os.kill(os.getpid(), signal.SIGKILL)
        return {"n": self.n}

    def step(self):
        self.note("steps")
        self.n += 1
        return self.n

    actor = made(Saved, str(tmp_path), state_dict=state_dict, step=step)
    log = [seen(actor.step.remote()) for _ in range(5)]
    assert log in ([1, 2, "lost", 3, 4], [1, 2, 3, 4, 5])
    assert times(tmp_path, "steps") == 5, "no step ran twice"


class Deadly:
    """An answer whose sending ends its process, once: the call has taken effect, and its caller cannot know."""

    def __init__(self, n, folder):
        self.n, self.folder = n, folder

    def __reduce__(self):
        if self.n == 3 and not times(self.folder, "sent"):
            (Path(self.folder) / "sent").write_text("once\n")
            os.kill(os.getpid(), signal.SIGKILL)
        return int, (self.n,)


@pytest.mark.parametrize("idempotent", [True, False])
def test_a_death_before_the_answer_is_delivered_makes_no_call_twice_on_the_same_state(idempotent, tmp_path):
    """The snapshot has the call's effect: Ray's repeat of it must find that, whatever may run twice."""

    def step(self):
        self.note("steps")
        self.n += 1
        return Deadly(self.n, self.folder)

    actor = made(Saved, str(tmp_path), guard=rayguard.guard(idempotent=idempotent), step=step)
    log = [seen(actor.step.remote()) for _ in range(5)]
    if idempotent:
        assert log == [1, 2, 3, 4, 5]
    else:
        assert log in ([1, 2, 3, 4, 5], [1, 2, "lost", 4, 5], [1, 2, "lost", 3, 4])
        assert times(tmp_path, "steps") == 5, "no step ran twice"


# -- kinds of actors


class Starts:
    """Its ``__init__`` is a coroutine, as of OpenRLHF's rollouts."""

    async def __init__(self, start):
        await asyncio.sleep(0.05)
        self.n = start

    async def step(self):
        await asyncio.sleep(0)
        self.n += 1
        return self.n

    async def pid(self):
        return os.getpid()


class StartsSaved(Starts):
    def state_dict(self):
        return {"n": self.n}

    def load_state_dict(self, state):
        self.n = state["n"]


@pytest.mark.parametrize("base", [Starts, StartsSaved])
@pytest.mark.parametrize("decorate", [lambda cls: cls, rayguard.guard], ids=["bare", "guarded"])
def test_an_init_that_is_a_coroutine_is_awaited(decorate, base):
    """It started uninitialised."""
    actor = made(base, 40, guard=decorate)
    assert [get(actor.step.remote()) for _ in range(2)] == [41, 42]


def test_an_actor_with_such_an_init_goes_on_from_its_state():
    """The coroutine runs in the next life too; the state comes after it."""
    actor = made(StartsSaved, 40)
    assert [get(actor.step.remote()) for _ in range(2)] == [41, 42]
    end(actor)
    assert get(actor.step.remote()) == 43
    assert [one.outcome for one in journal(actor)] == [Outcome.RECOVERED]


def test_an_error_of_such_an_init_is_its_own():
    """As of any other."""

    async def broken(self, _start):
        await asyncio.sleep(0)
        raise ValueError("no licence")

    actor = made(Starts, 1, __init__=broken)
    with pytest.raises(ray.exceptions.ActorDiedError, match="no licence"):
        get(actor.step.remote())


class Pairs:
    """Two sums that belong together: a snapshot within a call would tear them."""

    def __init__(self):
        self.lock = threading.Lock()
        self.one = self.other = 0

    def add(self):
        with self.lock:
            self.one += 1
        threading.Event().wait(0.01)
        with self.lock:
            self.other += 1
        return "added"

    def both(self):
        return self.one, self.other

    def pid(self):
        return os.getpid()

    def state_dict(self):
        return {"one": self.one, "other": self.other}

    def load_state_dict(self, state):
        self.one, self.other = state["one"], state["other"]


def test_a_threaded_actor_goes_on_from_a_moment_when_no_call_ran():
    """What ended since is told as lost, what was cut off as well; nothing runs twice."""
    actor = made(Pairs, options={"max_concurrency": 4, "max_restarts": -1})
    ray.get([actor.add.remote() for _ in range(40)], timeout=WAIT_S)
    assert get(actor.both.remote()) == (40, 40)
    pid = get(actor.pid.remote())
    running = [actor.add.remote() for _ in range(40)]
    ray.wait(running, num_returns=10, timeout=WAIT_S)
    os.kill(pid, signal.SIGKILL)
    log = [seen(ref) for ref in running]
    assert set(log) <= {"added", "lost"}
    assert log.count("lost") <= 2 * 4, "those that were cut off, and those whose answers were on their way"
    one, other = get(actor.both.remote())
    assert one == other, "a moment within a call was kept"
    (incident,) = journal(actor)
    missing = 40 + log.count("added") - one
    assert missing >= 0, "a call ran twice"
    assert incident.outcome is (Outcome.STATE_LOST if missing else Outcome.RECOVERED)
    assert bool(missing) is any("that had ended since" in note for note in incident.notes)


@pytest.mark.parametrize("twice", [False, True], ids=["once", "may run twice"])
def test_an_answer_that_no_state_has_is_not_forgotten_in_silence(twice, tmp_path):
    """It ended beside a call that died, so no state could be kept; bare, the actor is dead."""

    def dies(self, path):
        Path(f"{path}-waits").touch()
        until(lambda: Path(path).exists())
        os.kill(os.getpid(), signal.SIGKILL)

    step = rayguard.method(idempotent=True)(Trainer.step) if twice else Trainer.step
    actor = made(Saved, options={"max_concurrency": 2}, step=step, dies=dies)
    assert get(actor.step.remote()) == 1
    mark = tmp_path / "go"
    dying = actor.dies.remote(str(mark))
    until(Path(f"{mark}-waits").exists)  # a step that ends before it has begun is kept
    until(lambda: get(actor.step.remote()) >= 3)
    mark.touch()
    assert seen(dying) == ("lost" if twice else "ActorDiedError")
    after = seen(actor.step.remote())
    (incident,) = [one for one in journal(actor) if one.kind == "actor_died"]
    if twice:
        assert after == 4
        assert incident.outcome is Outcome.RECOVERED
        return
    assert after == "ActorDiedError"
    with pytest.raises(
        ray.exceptions.ActorDiedError, match=r"2 calls .step, step. that had ended since are lost"
    ):
        get(actor.step.remote())
    assert incident.outcome is Outcome.FAILED
    assert any("does not go on from an earlier state" in note for note in incident.notes)


def test_an_async_actor_and_its_streams_go_on_from_their_state():
    """Coroutines and generators are calls like others."""

    class Streams(StartsSaved):
        async def count(self, n):
            for _ in range(n):
                self.n += 1
                yield self.n

    actor = made(Streams, 0)
    stream = actor.count.options(num_returns="streaming").remote(3)

    async def read():
        return [await ref async for ref in stream]

    assert asyncio.run(read()) == [1, 2, 3]
    end(actor)
    assert get(actor.step.remote()) == 4


def test_an_actor_without_init_goes_on_from_its_state():
    """Its life begins with its first call."""

    class Bare:
        n = 0
        step, pid = Trainer.step, Trainer.pid
        state_dict, load_state_dict = Saved.state_dict, Saved.load_state_dict

    actor = made(Bare)
    assert [get(actor.step.remote()) for _ in range(2)] == [1, 2]
    end(actor)
    assert get(actor.step.remote()) == 3


@rayguard.guard
class Guarded(Trainer):
    """Cannot say its state; workers import it, and what is derived from it, by name."""


class Derived(Guarded):
    """Can, and has methods of its own."""

    def __init__(self):
        super().__init__()
        self.m = 0

    def step(self):
        super().step()
        self.m += 1
        return self.n, self.m

    def more(self):
        self.m += 10
        return self.m

    def snapshot(self):
        return self.n, self.m

    def restore(self, state):
        self.n, self.m = state


def test_a_class_derived_from_a_guarded_one_is_guarded_whole():
    """Its state is kept after its own methods, too, and never in the midst of one."""
    actor = ray.remote(num_cpus=0)(Derived).remote()
    assert get(actor.step.remote()) == (1, 1)
    assert get(actor.more.remote()) == 11
    end(actor)
    assert get(actor.step.remote()) == (2, 12)
    end(actor)
    assert get(actor.more.remote()) == 22
    assert [one.outcome for one in journal(actor)] == [Outcome.RECOVERED] * 2


def test_methods_that_hand_the_state_over_may_be_called_from_outside_and_call_others():
    """``state_dict`` is a guarded method itself: its call within the keeping is none."""

    class Nested(Saved):
        def parts(self):
            return {"n": self.n}

        def state_dict(self):
            return self.parts()

        def load_state_dict(self, state):
            self.take(state)

        def take(self, state):
            self.n = state["n"]

    actor = made(Nested)
    get(actor.load_state_dict.remote({"n": 7}))
    assert get(actor.state_dict.remote()) == {"n": 7}
    assert get(actor.step.remote()) == 8
    end(actor)
    assert get(actor.state_dict.remote()) == {"n": 8}
    assert get(actor.step.remote()) == 9
    assert [one.outcome for one in journal(actor)] == [Outcome.RECOVERED]


def test_a_guarded_part_with_a_state_of_its_own_is_the_actors_to_keep():
    """Its calls are no boundaries of the actor's, and it keeps nothing of its own."""

    @rayguard.guard
    class Part(Saved):
        __module__ = "__main__"  # by value

    class Whole(Saved):
        def __init__(self):
            super().__init__()
            self.part = Part()

        def step(self):
            self.part.step()
            return super().step()

        def state_dict(self):
            return {"n": self.n, "part": self.part.state_dict()}

        def load_state_dict(self, state):
            self.n = state["n"]
            self.part.load_state_dict(state["part"])

        def part_value(self):
            return self.part.value()

    actor = made(Whole)
    assert [get(actor.step.remote()) for _ in range(2)] == [1, 2]
    end(actor)
    assert get(actor.step.remote()) == 3
    assert get(actor.part_value.remote()) == 3


# -- what cannot be kept or had


def test_a_state_that_cannot_be_had_stops_no_call_and_is_told_on_death():
    """The actor works on; it begins anew only where its user asked for that, and says so. Else it is dead, as bare."""

    def state_dict(self):
        raise RuntimeError("not now")

    actor = made(Saved, options={"max_restarts": 1}, state_dict=state_dict)
    dead = made(Saved, state_dict=state_dict)
    for one in (actor, dead):
        assert [get(one.step.remote()) for _ in range(3)] == [1, 2, 3]
        end(one)
    with pytest.raises(ray.exceptions.ActorDiedError, match="had kept no state"):
        get(dead.step.remote())
    (over,) = [one for one in journal(dead) if one.kind == "actor_died"]
    assert over.outcome is Outcome.FAILED
    assert get(actor.step.remote()) == 1
    (incident,) = [one for one in journal(actor) if one.kind == "actor_died"]
    assert incident.outcome is Outcome.STATE_LOST
    assert any("had kept no state" in note for note in incident.notes)


def test_what_was_not_kept_any_more_is_told_with_its_number():
    """It goes on from the last state that could be had, where its user asked for restarts."""

    def state_dict(self):
        if self.n > 2:
            raise RuntimeError("not any more")
        return {"n": self.n}

    actor = made(Saved, options={"max_restarts": -1}, state_dict=state_dict)
    dead = made(Saved, state_dict=state_dict)
    for one in (actor, dead):
        assert [get(one.step.remote()) for _ in range(5)] == [1, 2, 3, 4, 5]
        end(one)
    with pytest.raises(
        ray.exceptions.ActorDiedError, match=r"4 calls .step, step, step, pid. that had ended"
    ):
        get(dead.step.remote())
    assert get(actor.step.remote()) == 3
    (incident,) = [one for one in journal(actor) if one.kind == "actor_died"]
    assert incident.outcome is Outcome.STATE_LOST
    # The last of them asked for the pid of what is to be killed.
    assert any("4 calls (step, step, step, pid) that had ended since" in note for note in incident.notes)


def test_a_state_that_the_class_does_not_take_any_more_is_no_new_beginning():
    """Better an error than a model that has forgotten what it learned."""

    def load_state_dict(self, state):
        raise KeyError("m")

    actor = made(Saved, load_state_dict=load_state_dict)
    get(actor.step.remote())
    end(actor)
    with pytest.raises(ray.exceptions.RayError, match="does not take its last state"):
        get(actor.step.remote())


def test_an_actor_whose_user_asked_for_restarts_begins_anew_loudly():
    """Nobody knows its state; the journal does not call it recovered."""
    actor = made(Trainer, options={"max_restarts": -1, "max_task_retries": -1})
    assert [get(actor.step.remote()) for _ in range(3)] == [1, 2, 3]
    pid = end(actor)
    assert get(actor.step.remote()) == 1
    (incident,) = journal(actor)
    assert incident.outcome is Outcome.STATE_LOST
    assert incident.pid == pid
    assert any("what it held is gone" in note for note in incident.notes)


def test_sys_exit_is_no_answer_that_a_next_life_gives_again(tmp_path):
    """It was kept as one: each next process raised it, and ended, until the budget was spent."""

    def leaves(self, path):
        if not Path(path).exists():
            Path(path).touch()
            sys.exit(3)
        return self.step()

    actor = made(Saved, options={"max_restarts": -1, "max_task_retries": -1}, leaves=leaves)
    assert [get(actor.step.remote()) for _ in range(2)] == [1, 2]
    assert get(actor.leaves.remote(str(tmp_path / "once"))) == 3
    assert get(actor.step.remote()) == 4
    assert [one.outcome for one in journal(actor)] == [Outcome.RECOVERED]


@pytest.mark.parametrize(
    ("guard", "answer"), [(rayguard.guard, 1), (rayguard.guard(idempotent=False), "lost")]
)
def test_a_user_who_asks_ray_for_repeats_gets_them(guard, answer, tmp_path):
    """``max_task_retries`` is a word that calls may run twice, as it is without rayguard; ours goes before."""
    mark = tmp_path / "once"

    def dies(self, path):
        if not Path(path).exists():
            Path(path).touch()
            os._exit(7)
        return self.step()

    options = {"max_restarts": -1, "max_task_retries": -1}
    actor = made(Saved, options=options, guard=guard, dies=dies)
    assert seen(actor.dies.remote(str(mark))) == answer
    above = guard(ray.remote(num_cpus=0)(type("Saved", (Saved,), {"__module__": __name__, "dies": dies})))
    mark.unlink()
    assert seen(above.remote().dies.remote(str(mark))) == "lost", (
        "what the guard filled in is no word of theirs"
    )


def test_the_users_word_that_there_is_no_state_keeps_none():
    """Although it could be had."""
    before = snapshots()
    actor = made(Saved, guard=rayguard.guard(state="none", idempotent=True))
    assert [get(actor.step.remote()) for _ in range(3)] == [1, 2, 3]
    assert snapshots() == before
    end(actor)
    assert get(actor.step.remote()) == 1
    assert [one.outcome for one in journal(actor)] == [Outcome.RECOVERED]


@pytest.mark.parametrize("base", [Trainer, Saved])
def test_no_snapshot_machinery_is_loaded_where_there_is_none_to_keep(base):
    """An actor that Ray never restarts has no use for it either."""

    def loaded(self):
        return [
            name for name in sys.modules if name.endswith((".restorable", ".snapshot_file", ".state_bytes"))
        ]

    before = snapshots()
    options = {"max_restarts": 0} if base is Saved else {}
    actor = made(base, loaded=loaded, options=options)
    get(actor.step.remote())
    assert get(actor.loaded.remote()) == []
    assert snapshots() == before


ENDING = """
import os, sys
import ray, rayguard

ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")


@ray.remote(num_cpus=0)
@rayguard.guard
class Saved:
    n = 0

    def step(self):
        self.n += 1
        return self.n

    def state_dict(self):
        return {"n": self.n}

    def load_state_dict(self, state):
        self.n = state["n"]


@ray.remote(num_cpus=0)
class Outer:
    def run(self):
        self.inner = Saved.remote()
        return ray.get(self.inner.step.remote())


killed, kept, outer = Saved.remote(), Saved.remote(), Outer.remote()
assert ray.get([killed.step.remote(), kept.step.remote(), outer.run.remote()], timeout=150) == [1, 1, 1]
print("kept", len(os.listdir(os.environ["RAYGUARD_HOME"] + "/snapshots")), flush=True)
ray.kill(killed)
"""


def test_no_snapshot_is_left_at_the_end(tmp_path):
    """Of a driver and all that it made: killed, alive at its end, or made by another actor."""
    environment = {**os.environ, "RAYGUARD_HOME": str(tmp_path / "home"), "RAY_AUTH_MODE": "disabled"}
    ran = subprocess.run(
        [sys.executable, "-c", ENDING],
        env=environment,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert "kept 3" in ran.stdout, ran.stderr
    until(lambda: not list((tmp_path / "home" / "snapshots").iterdir()), 20.0)


# -- a whole training


STEPS, KILLS = 60, 4


class Torch:
    """A small model, and an optimizer that has a state as well."""

    def __init__(self):
        import torch

        torch.manual_seed(0)
        torch.set_num_threads(1)
        self.model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)

    def step(self, n):
        import torch

        inputs = torch.randn(32, 16, generator=torch.Generator().manual_seed(n))
        loss = (self.model(inputs) - inputs[:, :1]).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def pid(self):
        return os.getpid()

    def state_dict(self):
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state):
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])


def test_the_curve_of_a_trainer_that_is_killed_again_and_again_is_the_fault_free_one():
    """Bit for bit, whenever the kills come."""
    reference = Torch()
    expected = [reference.step(n) for n in range(STEPS)]
    actor = made(Torch, guard=rayguard.guard(idempotent=True, policy=BUDGET))
    rng, found, killed, next_kill = random.Random(0), [], 0, 5
    for n in range(STEPS):
        pid = get(actor.pid.remote()) if n >= next_kill and killed < KILLS else 0
        running = actor.step.remote(n)
        if pid:
            threading.Event().wait(rng.uniform(0.0, 0.01))
            os.kill(pid, signal.SIGKILL)
            killed, next_kill = killed + 1, n + rng.randint(4, 12)
        found.append(get(running))
    assert killed == KILLS
    assert found == expected
    assert [one.outcome for one in journal(actor)] == [Outcome.RECOVERED] * KILLS
