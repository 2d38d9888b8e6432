"""How often an actor's state is kept, and what is held for it, on a real Ray."""

import os
import signal
import threading
import time
from pathlib import Path

import pytest
import ray

import rayguard
from rayguard.recovery.incident import Outcome
from rayguard.recovery.journal import default_journal

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("cluster")]

WAIT_S = 150  # for a busy machine: a deadline, no measure
THIRD = rayguard.GuardPolicy(snapshot=rayguard.SnapshotPolicy(every_calls=3))


class Counter:
    """Its state is a number."""

    def __init__(self):
        self.n = 0
        self.values = {}

    def step(self):
        self.n += 1
        return self.n

    @rayguard.method(idempotent=True)
    def set(self, name, value):
        self.values[name] = value
        return self.n, dict(self.values)

    def put(self):
        return [ray.put(bytes(1_000_000))]

    def held(self):
        from rayguard.ray_internals import object_refs

        return len(object_refs.counts(object_refs.core_worker()))

    def pid(self):
        return os.getpid()

    def state_dict(self):
        return {"n": self.n, "values": self.values}

    def load_state_dict(self, state):
        self.n, self.values = state["n"], state["values"]


def made(**options):
    """Create an actor of a guarded copy."""
    return ray.remote(num_cpus=0)(rayguard.guard(**options)(type("Counter", (Counter,), {}))).remote()


def get(ref):
    return ray.get(ref, timeout=WAIT_S)


def until(condition):
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        threading.Event().wait(0.02)


def test_calls_between_two_snapshots_are_lost_and_told():
    """It goes on from the last one; the incident names the calls that cost. What may run twice is made again."""
    actor = made(policy=THIRD)
    pid = get(actor.pid.remote())
    assert [get(actor.step.remote()) for _ in range(3)] == [1, 2, 3]  # the second was the third call
    assert get(actor.set.remote("a", 1)) == (3, {"a": 1})
    os.kill(pid, signal.SIGKILL)
    until(lambda: not Path(f"/proc/{pid}").exists())
    threading.Event().wait(0.5)  # for Ray to know it: what is called now meets the next life
    assert get(actor.set.remote("b", 2)) == (2, {"a": 1, "b": 2})
    (incident,) = [one for one in default_journal().read() if one.actor_id == actor._actor_id.hex()]
    assert incident.outcome is Outcome.STATE_LOST
    assert any("1 call (step) that had ended since is lost" in note for note in incident.notes)


def test_what_answers_refer_to_is_not_held_for_ever():
    """Pickled by anybody but Ray, a reference is: each answer of a trainer would stay in the object store."""
    actor = made()
    for _ in range(20):
        get(actor.put.remote())
    until(lambda: get(actor.held.remote()) < 10)
