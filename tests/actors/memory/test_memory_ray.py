"""Memory of guarded actors on a real Ray: relieved between calls, recycled without a loss, or told why not."""

from __future__ import annotations

import os
import threading
import time

import pytest

import rayguard
from rayguard.actors.life import graceful_exit
from rayguard.recovery.budget import RestartBudget
from rayguard.recovery.incident import Outcome
from rayguard.recovery.journal import Journal

pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("default")]

MIB = 1 << 20
LIMIT = 400 * MIB  # a worker has about 60 MiB of its own
POLICY = rayguard.MemoryPolicy(process_limit=LIMIT, interval_s=0.2)
CALLS = 24
_ANSWER_S = 120.0


class Leaky:
    """Each call leaks 40 MiB; the sum of all calls is its state."""

    def __init__(self, start=0):
        self.total = start
        self.seen = []

    def add(self, number):
        self.seen.append(bytearray(b"x") * (40 * MIB))
        threading.Event().wait(0.25)  # longer than the shortest time between two looks
        self.total += number
        return os.getpid(), self.total

    def put(self):
        import ray

        return [ray.put(b"x" * MIB)]

    def size(self):
        return len(self.seen)


class LeakyWithState(Leaky):
    def state_dict(self):
        return {"total": self.total}

    def load_state_dict(self, state):
        self.total = state["total"]


class Shrinking(Leaky):
    def reduce_memory(self, wanted_bytes):
        self.wanted = wanted_bytes
        self.seen.clear()


def actor_of(cluster, base, **policy):
    """Guard a class of its own, so that each test may say another policy.

    Calls of one that is stateless may run twice, else nobody would repeat those that wait for a new process.
    """
    cls = type(base.__name__, (base,), {"__module__": __name__})
    chosen = rayguard.MemoryPolicy(**{"process_limit": LIMIT, "interval_s": 0.2, **policy})
    said = {"idempotent": True} if chosen.recycle == "stateless" else {}
    return cluster.remote(num_cpus=0)(rayguard.guard(memory=chosen, **said)(cls))


def get(cluster, ref):
    return cluster.get(ref, timeout=_ANSWER_S)


def incidents_of(name, *, since, at_least=1):
    """Return the memory incidents of a class, as soon as there are some that have closed."""
    until = time.monotonic() + 30
    while True:
        found = [i for i in Journal(os.environ["RAYGUARD_HOME"]).read() if i.target == name]
        found = [i for i in found if i.detected_at >= since and i.outcome is not Outcome.OPEN]
        if len(found) >= at_least or time.monotonic() > until:
            return found
        threading.Event().wait(0.1)


def test_a_leaking_actor_is_replaced_between_calls_and_nothing_is_lost(cluster):
    """Queued calls go to the next process; each runs once, in its order of arrival or any other, on one state."""
    began = time.time()
    actor = actor_of(cluster, LeakyWithState).remote(100)
    answers = [get(cluster, actor.add.remote(n)) for n in range(CALLS)]
    assert [total for _, total in answers] == [100 + sum(range(n + 1)) for n in range(CALLS)]
    lives = list(dict.fromkeys(pid for pid, _ in answers))
    assert len(lives) >= 3, "it leaked three times its limit"
    told = incidents_of("LeakyWithState", since=began, at_least=len(lives) - 1)
    recycled = [i for i in told if i.remedy == "relieve+recycle"]
    assert {i.outcome for i in recycled} == {Outcome.RECOVERED}
    assert len(recycled) == len(lives) - 1
    assert any("collect freed" in note for note in recycled[0].notes), "what costs nothing came first"


def test_calls_that_wait_are_answered_by_the_next_life(cluster):
    """All at once: Ray repeats what had not begun, and never what had ended."""
    actor = actor_of(cluster, LeakyWithState).remote()
    answers = cluster.get([actor.add.remote(1) for _ in range(CALLS)], timeout=_ANSWER_S)
    assert sorted(total for _, total in answers) == list(range(1, CALLS + 1))
    assert len({pid for pid, _ in answers}) >= 3


class Late:
    """An answer that a process on its way out does not get sent in time."""

    def __init__(self, total):
        self.total = total

    def __reduce__(self):
        if graceful_exit.is_leaving() and threading.current_thread().name != "rayguard-leaving":
            threading.Event().wait(20 * graceful_exit.DELIVERY_S)
        return Late, (self.total,)


class LateWithState(LeakyWithState):
    def add(self, number):
        pid, total = super().add(number)
        return pid, Late(total)


class LateAndAsync(LeakyWithState):
    async def add(self, number):
        pid, total = super().add(number)
        return pid, Late(total)


@pytest.mark.parametrize("base", [LateWithState, LateAndAsync])
def test_a_call_whose_answer_was_not_delivered_is_answered_and_not_made_again(cluster, base):
    """Ray repeats it, on a state that has its effect already."""
    actor = actor_of(cluster, base).remote()
    answers = [get(cluster, actor.add.remote(1)) for _ in range(CALLS)]
    assert [late.total for _, late in answers] == list(range(1, CALLS + 1))
    assert len({pid for pid, _ in answers}) >= 3


@pytest.mark.parametrize(
    ("base", "policy", "why"),
    [
        (Leaky, {}, "has no state_dict"),
        (LeakyWithState, {"recycle": None}, "it is not allowed to"),
        (
            LeakyWithState,
            {"recycle_budget": RestartBudget(max_restarts=0, within_s=60.0)},
            "it was recycled 0 times within 60 s already",
        ),
    ],
    ids=["no state", "not allowed", "no budget"],
)
def test_it_says_why_a_process_is_not_replaced(cluster, base, policy, why):
    """And leaves it alone."""
    began = time.time()
    actor = actor_of(cluster, base, **policy).remote()
    answers = [get(cluster, actor.add.remote(1)) for _ in range(12)]
    assert len({pid for pid, _ in answers}) == 1
    assert answers[-1][1] == 12
    found = incidents_of(base.__name__, since=began)
    (told,) = (incident for incident in found if incident.outcome is Outcome.FAILED)
    assert any("nothing more can be done" in note and why in note for note in told.notes), told.notes


def test_an_actor_without_state_may_say_so(cluster):
    actor = actor_of(cluster, Leaky, recycle="stateless").remote()
    answers = [get(cluster, actor.add.remote(1)) for _ in range(12)]
    assert len({pid for pid, _ in answers}) >= 2
    assert answers[-1][1] < 12, "a new life begins anew"


def test_the_users_own_way_to_need_less_comes_before_a_new_process(cluster):
    actor = actor_of(cluster, Shrinking, recycle="stateless").remote()
    answers = [get(cluster, actor.add.remote(1)) for _ in range(CALLS)]
    assert len({pid for pid, _ in answers}) == 1
    assert get(cluster, actor.size.remote()) < CALLS


def test_a_process_that_owns_what_others_hold_is_not_replaced(cluster):
    """Its objects would die with it."""
    began = time.time()
    actor = actor_of(cluster, LeakyWithState).remote()
    (held,) = get(cluster, actor.put.remote())
    answers = [get(cluster, actor.add.remote(1)) for _ in range(12)]
    assert len({pid for pid, _ in answers}) == 1
    assert get(cluster, held) == b"x" * MIB
    told = [note for incident in incidents_of("LeakyWithState", since=began) for note in incident.notes]
    assert any("others hold 1 objects that this process owns" in note for note in told)
    del held
    threading.Event().wait(6.0)  # until it is asked again
    assert get(cluster, actor.add.remote(1))[1] == 13
    assert get(cluster, actor.add.remote(1))[0] != answers[0][0], "then it is"


def test_a_life_that_cannot_have_its_state_does_not_go_on_as_if_it_were_new(cluster, tmp_path):
    """Better an error than a model that has forgotten what it learned."""

    class Forgetful(LeakyWithState):
        def load_state_dict(self, state):
            raise rayguard.StateLostError("a damaged state")

    Forgetful.__module__ = "__main__"  # by value
    chosen = rayguard.MemoryPolicy(process_limit=LIMIT, interval_s=0.2)
    actor = cluster.remote(num_cpus=0)(rayguard.guard(memory=chosen)(Forgetful)).remote()
    with pytest.raises(cluster.exceptions.RayError, match="a damaged state"):
        for _ in range(CALLS):
            get(cluster, actor.add.remote(1))
