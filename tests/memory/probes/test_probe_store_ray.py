"""Ray's own numbers, on a real cluster: the object store, its users, the monitor's settings, the command."""

import json
import os
import subprocess
import sys
import threading

import numpy as np
import pytest

from rayguard.memory.probes.ray_node import own_ray_node, ray_nodes, registered
from rayguard.memory.probes.sample import Probes
from rayguard.memory.reading import Quantity
from rayguard.ray_internals.node_stats import StoreProbe

pytestmark = pytest.mark.ray
MIB = 1 << 20
THRESHOLD = 0.97


@pytest.fixture(scope="module")
def ray():
    """One node with a threshold of its own for the memory monitor."""
    import ray

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "disabled")
        patch.setenv("RAY_memory_usage_threshold", "0.5")  # Ray prefers what is in the system config
        ray.init(
            address="local",
            num_cpus=1,
            object_store_memory=300 * MIB,
            include_dashboard=False,
            log_to_driver=False,
            logging_level="ERROR",
            _system_config={"memory_usage_threshold": THRESHOLD},
        )
        try:
            yield ray
        finally:
            ray.shutdown()


@pytest.fixture
def store(ray):
    return StoreProbe(registered(own_ray_node()).address)


def eventually(condition, limit_s=30.0):
    """Ray frees objects in batches, about one a second."""
    pause = threading.Event()
    for _ in range(int(limit_s / 0.1)):
        if condition():
            return True
        pause.wait(0.1)
    return False


def test_the_store_rises_by_a_put_and_falls_when_it_is_dropped(ray, store):
    """50 MB, within what Ray adds for itself; owned by this driver."""
    before = store.read()
    held = ray.put(np.ones(50 * MIB, dtype=np.uint8))
    during = store.read(detail=True)
    assert 50 * MIB <= during.used - before.used < 51 * MIB
    assert during.capacity == 300 * MIB
    me = next(user for user in during.users if user.pid == os.getpid())
    assert me.driver
    assert me.owned_bytes >= 50 * MIB
    del held
    assert eventually(lambda: store.read().used <= before.used + MIB)


def test_a_borrower_is_told_from_the_owner(ray, store):
    """Who must let go is not always who made it."""

    @ray.remote
    class Borrower:
        def hold(self, refs):
            self.refs = refs
            return os.getpid()

    borrower, held = Borrower.remote(), ray.put(np.ones(20 * MIB, dtype=np.uint8))
    pid = ray.get(borrower.hold.remote([held]))
    user = next(user for user in store.read(detail=True).users if user.pid == pid)
    assert (user.driver, user.owned_bytes) == (False, 0)
    assert user.borrowed_bytes >= 20 * MIB
    ray.kill(borrower)


def test_a_worker_sees_its_node_and_its_store(ray):
    """In an actor, with the settings that its raylet really uses."""

    @ray.remote
    class Actor:
        def look(self):
            probes = Probes()
            samples = (probes.sample(step=3) for _ in range(20))  # a busy raylet may miss its deadline
            sample = next(s for s in samples if any(r.quantity is Quantity.STORE for r in s.readings))
            kills_at, missing = probes.kills_at(), dict(probes.sources.missing)
            probes.close()
            return sample, kills_at, missing, os.getpid()

    sample, kills_at, missing, pid = ray.get(Actor.remote().look.remote())
    found = {reading.quantity: reading for reading in sample.readings}
    assert missing == {}
    assert found[Quantity.STORE].limit == 300 * MIB
    assert found[Quantity.PRIVATE].pid == pid
    assert found[Quantity.DISK].used > 0
    node = next(r for r in sample.readings if r.quantity is Quantity.NODE and not r.who)
    assert kills_at == int(node.limit * THRESHOLD)


def test_the_command_shows_the_cluster_and_an_actor_with_its_objects(ray, tmp_path):
    """As an operator would call it, in a process that belongs to no cluster."""

    @ray.remote
    class Keeper:
        def keep(self):
            self.ref = ray.put(np.ones(30 * MIB, dtype=np.uint8))

    keeper = Keeper.remote()
    ray.get(keeper.keep.remote())
    run = subprocess.run(
        [sys.executable, "-m", "rayguard", "memory", "--json", "--top", "500"],
        env={**os.environ, "RAYGUARD_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    shown = json.loads(run.stdout)
    rows = [row for row in shown["rows"] if row["name"].startswith("ray::Keeper")]
    assert any(row["objects"] >= 30 * MIB for row in rows)
    mine = own_ray_node()
    store = next(one for one in shown["stores"] if one["node"]["pid"] == mine.pid)
    assert store["memory"]["capacity"] == 300 * MIB
    assert "environment" not in store["node"]


def test_a_cluster_that_ended_is_a_missing_reading(ray):
    """Last in this module: the raylet goes. No exception, no long wait, and it is no longer found."""
    node = own_ray_node()
    store = StoreProbe(registered(node).address)
    assert store.read() is not None
    ray.shutdown()
    assert store.read() is None
    assert registered(node) is None
    assert node not in ray_nodes()
