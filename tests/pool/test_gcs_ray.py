"""A pool over two nodes of a real cluster: deaths are pushed, nodes that go are left in time."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time

import pytest
import tenacity

from rayguard.pool.pool import RolloutPool
from rayguard.pool.values.policy import PoolPolicy
from rayguard.pool.values.request import fan_out
from rayguard.testing.scripted import answer
from tests.pool.light import light
from tests.unlisted_cluster import unlisted_cluster

pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("default")]

PROMPTS = [[n, n + 1, 5] for n in range(24)]
# The death of a node is found in about 6 s and not in 14 s. (In less, a busy machine loses nodes that live.)
HEALTH = {
    "health_check_initial_delay_ms": 2_000,
    "health_check_period_ms": 1_000,
    "health_check_timeout_ms": 5_000,
    "health_check_failure_threshold": 4,
}


@pytest.fixture(scope="module")
def nodes(tmp_path_factory):
    """A head and what can be added to it; engines fit twice on each."""
    import ray

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "disabled")
        patch.setenv("RAYGUARD_HOME", str(tmp_path_factory.mktemp("home")))
        cluster = unlisted_cluster(
            initialize_head=True,
            head_node_args={"num_cpus": 1, "resources": {"engine": 2}, "_system_config": HEALTH},
        )
        try:
            ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
            yield cluster
        finally:
            ray.shutdown()
            cluster.shutdown()


@tenacity.retry(stop=tenacity.stop_after_attempt(3), reraise=True)
def add_node(nodes):
    """Add a node for two engines. Its start is Ray's affair: on a busy machine it may take more than one try."""
    nodes.add_node(num_cpus=1, resources={"engine": 2})


class Play:
    def __init__(self, pool):
        self.pool = pool
        self.here = pool._provider.node_id

    def engines(self):
        return {n: e for n, e in self.pool.status()["engines"].items() if e["state"] != "starting"}

    def far(self):
        """The engines on the other node."""
        return {name: e for name, e in self.engines().items() if e["node_id"] != self.here}

    def begin(self, tokens):
        self.sampling = {"max_tokens": tokens}
        self.futures = [self.pool.submit(prompt, self.sampling) for prompt in PROMPTS]
        self.until(lambda: all(len(e.generated) for e in list(self.pool._core.book.entries.values())))

    def right(self):
        samples = [future.result(60).samples[0] for future in self.futures]
        for sample, prompt in zip(samples, PROMPTS, strict=True):
            assert sample.token_ids == answer(fan_out("x", prompt, self.sampling)[0])
        return samples

    def until(self, condition, within_s=60.0):
        deadline = time.monotonic() + within_s
        while not condition():
            assert time.monotonic() < deadline, "it never came to that"
            threading.Event().wait(0.01)


@pytest.fixture(scope="module")
def play(nodes):
    """Three engines: at least one is on the other node."""
    add_node(nodes)
    options = {"num_cpus": 0, "resources": {"engine": 1}, "max_restarts": -1}
    policy = PoolPolicy(progress=False, quarantine_after=100)
    with RolloutPool(light(), 0.02, engines=3, options=options, policy=policy) as pool:
        pool.wait_ready(timeout_s=120)
        yield Play(pool)


def test_a_death_on_another_node_is_pushed(play):
    """The pool does not wait for its next call to fail; the next life joins."""
    for _ in range(3):  # the first time the pool may not listen yet
        name, engine = next(iter(play.far().items()))
        play.pool._core.causes.pop(name, None)
        play.begin(300)
        began = time.monotonic()
        os.kill(engine["pid"], signal.SIGKILL)
        play.until(lambda name=name: play.pool._core.causes.get(name))
        print(f"told after {time.monotonic() - began:.3f} s: {play.pool._core.causes[name][:40]}")
        assert any(sample.cuts for sample in play.right())
        play.pool.wait_ready(timeout_s=120)
        if "Ray says" in play.pool._core.causes[name]:
            return
    pytest.fail("nobody said it")


def test_what_the_user_starts_meanwhile_begins(play):
    """While the pool listens: a library with fork handlers would crash some between fork and exec."""
    assert play.far()
    play.begin(1_000)
    ends = [subprocess.run(["/bin/true"], preexec_fn=lambda: None, check=False) for _ in range(200)]
    assert {end.returncode for end in ends} == {0}
    play.right()


def test_a_node_that_will_be_taken_away_is_left_before(nodes, play):
    """Others are hired, work moves with its tokens, and nothing of ours is there when it goes."""
    from ray._raylet import GcsClient
    from ray.core.generated.autoscaler_pb2 import DrainNodeReason

    add_node(nodes)
    going = play.far()
    node_id = next(iter(going.values()))["node_id"]
    going = [name for name, engine in going.items() if engine["node_id"] == node_id]
    play.begin(1_000)
    deadline = time.time() + 6.0
    reason = DrainNodeReason.DRAIN_NODE_REASON_PREEMPTION
    drained, why = GcsClient(address=nodes.address).drain_node(node_id, reason, "test", int(deadline * 1000))
    assert drained, why
    play.until(lambda: not set(going) & play.pool.status()["engines"].keys())
    left_s = deadline - time.time()
    print(f"left {left_s:.1f} s before the deadline")
    play.right()
    play.pool.wait_ready(timeout_s=120)
    assert len(play.engines()) == 3
    assert node_id not in {engine["node_id"] for engine in play.engines().values()}


def test_a_node_that_is_lost_loses_nothing(nodes, play):
    """Without a notice."""
    far = {engine["node_id"] for engine in play.far().values()}
    lost = next(node for node in nodes.worker_nodes if node.node_id in far)
    add_node(nodes)
    play.begin(300)
    nodes.remove_node(lost, allow_graceful=False)
    assert any(sample.cuts for sample in play.right())
    play.pool.wait_ready(timeout_s=120)
    assert len(play.engines()) == 3
