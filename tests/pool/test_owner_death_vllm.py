"""The actor that owns a pool of real vLLM engines is killed: its next life goes on with the same engines."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

import rayguard
from rayguard.engine.adoption.lease import leases
from rayguard.testing import tiny_qwen
from tests.engine.real import ENVIRONMENT
from tests.pool.test_pool_vllm import PATHS, PROMPTS, SAMPLING, Rollout

pytestmark = [
    pytest.mark.ray,
    pytest.mark.vllm,
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("default"),
]

ENDED_S = 10.0  # 5 s are promised, on a machine that does nothing else
LONG = {**SAMPLING, "max_tokens": 200}


class Owner:
    """Owns a pool; what it was asked for is in the pool's ledger."""

    def __init__(self, model: str, current: str):
        options = {"num_cpus": 0, "runtime_env": rayguard.preloaded("vllm")}
        policy = rayguard.PoolPolicy(progress=False, spares=2)
        self.pool = rayguard.RolloutPool(Rollout, model, current, engines=2, options=options, policy=policy)

    def ready(self):
        self.pool.wait_ready(timeout_s=600)
        return os.getpid()

    def made(self):
        return sum(len(entry.generated) for entry in self.pool._core.book.entries.values())

    def generate(self, ids):
        return [(s.token_ids, s.cuts) for s in self.pool.generate(PROMPTS, LONG, ids=ids).samples]


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def owner(home, tmp_path_factory):
    """An actor that Ray starts again, on a node whose workers begin with vLLM imported."""
    import ray

    environment = {**ENVIRONMENT, "RAY_AUTH_MODE": "disabled", "RAYGUARD_HOME": str(home)}
    environment |= {"PYTHONPATH": os.pathsep.join(PATHS), "TORCHDYNAMO_DISABLE": "1"}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        ray.init(
            address="local", num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level="ERROR"
        )
        try:
            folder = tmp_path_factory.mktemp("pool")
            model = str(tiny_qwen.build(folder / "1", spread=0.2))
            (folder / "current").write_text("1")
            options = {"num_cpus": 0, "max_restarts": -1, "max_concurrency": 4}
            made = ray.remote(**options, runtime_env=rayguard.preloaded("vllm"))(Owner)
            yield made.remote(model, str(folder / "current"))
        finally:
            ray.shutdown()


def get(reference):
    import ray

    return ray.get(reference, timeout=300)


def engines(home):
    """The processes that wait, or serve, with a lease."""
    return {one.core for one in leases(home)}


def cut(owner, ids):
    """Ask for ``ids``, and kill the owner once there are tokens."""
    import ray

    pid = get(owner.ready.remote())
    running, until = owner.generate.remote(ids), time.monotonic() + 120
    while get(owner.made.remote()) < 20 * len(PROMPTS):
        assert time.monotonic() < until, "no tokens came"
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(ray.exceptions.RayActorError):
        get(running)


def test_the_next_life_of_a_pools_owner_goes_on_with_its_engines(owner, home):
    """Life after life: the same processes, the same answers, from the tokens that were made."""
    import ray

    get(owner.ready.remote())
    wanted = [tokens for tokens, _ in get(owner.generate.remote([f"calm-{n}" for n in range(len(PROMPTS))]))]
    before = engines(home)
    assert len(before) == 2
    for life in range(2):
        ids = [f"life-{life}-{n}" for n in range(len(PROMPTS))]
        cut(owner, ids)
        until = time.monotonic() + 120
        while True:
            try:
                answered = get(owner.generate.remote(ids))
                break
            except ray.exceptions.ActorUnavailableError:
                assert time.monotonic() < until, "its next life does not come"
        assert [tokens for tokens, _ in answered] == wanted
        assert any(cuts for _, cuts in answered), "what was made was not made again"
        get(owner.ready.remote())
        assert engines(home) == before


def test_engines_end_with_a_pools_owner_that_does_not_come_back(owner, home):
    """It is killed for good, while it works."""
    import ray

    get(owner.ready.remote())
    owner.generate.remote([f"last-{n}" for n in range(len(PROMPTS))])
    cores = engines(home)
    assert len(cores) == 2
    ray.kill(owner)
    until = time.monotonic() + ENDED_S
    while any(core.alive() for core in cores) and time.monotonic() < until:
        threading.Event().wait(0.05)
    assert not [core for core in cores if core.alive()]
    assert not engines(home)
