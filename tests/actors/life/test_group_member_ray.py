"""Members of a process group, on a real Ray: none is begun anew or ended alone."""

from __future__ import annotations

import datetime as dt
import os
import signal
import threading

import pytest
import ray

import rayguard
from rayguard.recovery.incident import Outcome

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("cluster")]

WAIT_S = 150  # for a busy machine: a deadline, no measure


class Rank:
    """Reduces with one other at each step."""

    def __init__(self):
        self.steps = 0

    def join(self, rank, place):
        import torch.distributed as dist

        store = f"file://{place}"
        dist.init_process_group(
            "gloo", init_method=store, rank=rank, world_size=2, timeout=dt.timedelta(seconds=20)
        )

    def step(self):
        import torch
        import torch.distributed as dist

        dist.all_reduce(torch.ones(2))
        self.steps += 1
        return self.steps

    def pid(self):
        return os.getpid()

    def state_dict(self):
        return {"steps": self.steps}

    def load_state_dict(self, state):
        self.steps = state["steps"]


def get(ref):
    return ray.get(ref, timeout=WAIT_S)


def came(ref):
    """Return what the caller gets, as text."""
    try:
        return get(ref)
    except ray.exceptions.RayError as error:
        return f"{type(error).__name__}: {error}"


def group(place, *, guard=rayguard.guard, **options):
    """Make two ranks that have taken a step together."""
    cls = guard(type("Rank", (Rank,), {"__module__": __name__}))
    ranks = [ray.remote(num_cpus=0, **options)(cls).remote() for _ in range(2)]
    ray.get([one.join.remote(n, place) for n, one in enumerate(ranks)], timeout=WAIT_S)
    assert ray.get([one.step.remote() for one in ranks], timeout=WAIT_S) == [1, 1]
    return ranks


def journal(actor):
    from rayguard.recovery.journal import default_journal

    return [one for one in default_journal().read() if one.actor_id == actor._actor_id.hex()]


@pytest.mark.parametrize("kind", ["restorable", "stateless"])
def test_a_member_that_died_stays_dead_and_the_other_is_told_its_own_error(kind, tmp_path):
    """As bare: rayguard's restart of one would be a rank that nobody has joined."""
    guard = rayguard.guard if kind == "restorable" else rayguard.guard(state="none")
    dead, other = group(tmp_path / "store", guard=guard)
    pid, healthy = get(dead.pid.remote()), get(other.pid.remote())
    os.kill(pid, signal.SIGKILL)
    said = came(dead.step.remote())
    assert said.startswith(("ActorDiedError", "ActorUnavailableError"))
    error = came(other.step.remote())
    assert error.startswith("RayTaskError"), error
    assert "Connection closed by peer" in error or "gloo" in error.lower()
    assert get(other.pid.remote()) == healthy
    for _ in range(100):
        said = came(dead.step.remote())
        if said.startswith("ActorDiedError"):
            break
        threading.Event().wait(0.1)
    assert "member of a process group" in said
    (incident,) = [one for one in journal(dead) if one.outcome is Outcome.FAILED]
    assert (incident.scope, incident.pid) == ("group", pid)


def test_a_user_who_asked_ray_for_restarts_gets_them(tmp_path):
    """He may have a way to join again; what is lost is told."""
    dead, _ = group(tmp_path / "store", max_restarts=-1, max_task_retries=-1)
    os.kill(get(dead.pid.remote()), signal.SIGKILL)
    threading.Event().wait(0.5)
    assert get(dead.pid.remote())
    (incident,) = journal(dead)
    assert incident.outcome is Outcome.STATE_LOST
    assert any("member of a process group" in note for note in incident.notes)
