"""A pool of real vLLM engines in real Ray actors that are killed and frozen under load."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

import rayguard
from rayguard.recovery.incident import Outcome
from rayguard.testing import tiny_qwen
from tests.engine.real import ENVIRONMENT, incidents

pytestmark = [
    pytest.mark.ray,
    pytest.mark.vllm,
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("default"),
]

# Workers import this file: by its module's name, and what it imports from the repository.
PATHS = [str(Path(__file__).parent), str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
WARM_S = 32.0  # an actor's memory is said to have grown from what it was at 30 s
PROMPTS = [[20 + n, 7, 90 + 3 * n, 11] * 5 for n in range(24)]
SAMPLING = {
    "temperature": 0.0,
    "repetition_penalty": 1.3,
    "max_tokens": 120,
    "ignore_eos": True,
    "logprobs": 0,
}


@rayguard.guard(memory=rayguard.MemoryPolicy(process_limit=3 << 30))  # each holds about 1 GiB
class Rollout(rayguard.RolloutMixin):
    """All that a user writes."""

    def __init__(self, model: str, current: str):
        self.begun_with_vllm = "vllm" in sys.modules
        self.model, self.current, self.born = model, Path(current), time.monotonic()
        self.start_engine(weights=self.weights)

    def weights(self):
        version = self.current.read_text()
        return rayguard.Weights(version, path=str(self.current.parent / version / "model.safetensors"))

    def begun(self):
        """Whether its process had vLLM before it was made; who its parent is."""
        return self.begun_with_vllm, os.getppid()

    def age(self):
        """Seconds."""
        return time.monotonic() - self.born

    def hoard(self, gib):
        """Leak."""
        self.hoarded = bytearray(b"x") * (gib << 30)

    def spoil_next(self, factor):
        """Damage the weights that are pushed next, behind their receipt."""
        from rayguard.engine.vllm.async_client import run_on
        from rayguard.engine.vllm.engine import VllmEngine

        push = VllmEngine.push

        def damaging(engine, weights, *, deadline_s):
            VllmEngine.push = push
            receipts = push(engine, weights, deadline_s=deadline_s)
            run_on(engine.loop, engine.core.collective_rpc_async("spoil", None, (factor,), None), 60.0)
            return receipts

        VllmEngine.push = damaging

    def build_engine(self, settings):
        from vllm import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM
        from vllm.v1.executor.uniproc_executor import UniProcExecutor

        args = settings.as_kwargs(
            model=self.model,
            dtype="float32",
            enforce_eager=True,
            max_model_len=256,
            max_num_seqs=16,
            max_num_batched_tokens=512,
            kv_cache_memory_bytes=64 << 20,
            generation_config="vllm",
            distributed_executor_backend=UniProcExecutor,  # as on one GPU; on the CPU, vLLM takes two processes
            worker_extension_cls="tests.engine.spoiling.Spoiler",
        )
        return AsyncLLM.from_engine_args(AsyncEngineArgs(**args))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("pool")


@pytest.fixture(scope="module")
def pool(folder):
    """Two engines on one small machine."""
    import ray

    environment = {**ENVIRONMENT, "RAYGUARD_HOME": str(folder / "home"), "TORCHDYNAMO_DISABLE": "1"}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**environment, "RAY_AUTH_MODE": "disabled"}.items():
            patch.setenv(name, value)
        patch.setenv("PYTHONPATH", os.pathsep.join(PATHS))
        ray.init(
            address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR"
        )
        try:
            model = str(tiny_qwen.build(folder / "1", spread=0.2))
            (folder / "current").write_text("1")
            policy = rayguard.PoolPolicy(progress=False)
            with rayguard.RolloutPool(
                Rollout, model, str(folder / "current"), engines=2, options={"num_cpus": 0}, policy=policy
            ) as made:
                made.wait_ready(timeout_s=600)
                yield made
        finally:
            ray.shutdown()


def said(batch):
    return [(s.token_ids, s.text, s.finish_reason, s.logprobs) for s in batch.samples]


class Strike(threading.Thread):
    """Sends a signal to a process of an actor once what runs there has made some tokens."""

    def __init__(self, pool, name, sign, which="pid", tokens=10):
        super().__init__(daemon=True)
        self.pool, self.name_, self.sign, self.which, self.tokens = pool, name, sign, which, tokens
        self.struck: list[tuple[int, float]] = []

    def run(self):
        core, until = self.pool._core, time.monotonic() + 120
        while time.monotonic() < until:
            slot = core.book.slots.get(self.name_)
            running = [] if slot is None else list(slot.running.values())
            if any(len(entry.generated) >= self.tokens for entry in running):
                pid = self.pool.status()["engines"][self.name_]["pid"]
                os.kill(pid, self.sign)
                self.struck.append((pid, time.monotonic()))
                return
            threading.Event().wait(0.002)

    def batch(self):
        """Start; return the batch it fell into. Of a short one on busy cores the pool may hear at the end only."""
        self.start()
        while self.is_alive():
            batch = self.pool.generate(PROMPTS, SAMPLING)
            if self.struck:
                return batch
        pytest.fail("the fault must have fired")


def test_an_actor_that_is_killed_loses_nothing(pool):
    """Its requests go on at the other engine; callers see the same answers, and where they were cut."""
    wanted, before = said(pool.generate(PROMPTS, SAMPLING)), len(incidents())
    strike = Strike(pool, "rollout-0", signal.SIGKILL)
    batch = strike.batch()
    assert said(batch) == wanted
    cut = [s for s in batch.samples if s.cuts]
    assert cut
    assert all(s.engine == "rollout-1" for s in cut)
    assert not any(s.restarted for s in batch.samples)
    assert pool.wait_ready(timeout_s=300) == 2
    assert said(pool.generate(PROMPTS, SAMPLING)) == wanted
    (told,) = incidents()[before:]
    assert (told.kind, told.outcome) == ("actor_died", Outcome.RECOVERED)
    assert told.requests >= len(cut), "those that had no token yet were cut at none"
    assert told.tokens_saved == sum(s.cuts[0] for s in cut)
    assert 0 <= told.tokens_lost <= 16 * told.requests
    assert told.resume_s < told.recover_s
    assert f"its requests went on at rollout-1 ({told.requests})" in told.notes


def test_an_actor_that_is_frozen_is_replaced(pool):
    """Ray never sees it; the pool does, in seconds."""
    pool.wait_ready(timeout_s=300)
    wanted = said(pool.generate(PROMPTS, SAMPLING))
    strike = Strike(pool, "rollout-1", signal.SIGSTOP)
    batch = strike.batch()
    assert said(batch) == wanted
    assert pool.wait_ready(timeout_s=300) == 2


def test_an_actor_that_comes_again_need_not_import_vllm(pool):
    """A process of its node has, beside, since an engine serves: the next life of any actor is forked from it."""
    import ray

    pool.wait_ready(timeout_s=300)
    _, raylet = ray.get(pool.handles["rollout-0"].begun.remote(), timeout=150)
    until = time.monotonic() + 300
    while sorted(_for_workers(raylet)) != ["rayguard: forks Ray's workers"]:
        assert time.monotonic() < until, "who listens goes when the other one can fork"
        threading.Event().wait(0.1)
    os.kill(pool.status()["engines"]["rollout-0"]["pid"], signal.SIGKILL)
    assert pool.generate(PROMPTS, SAMPLING)
    pool.wait_ready(timeout_s=300)
    assert ray.get(pool.handles["rollout-0"].begun.remote(), timeout=150) == (True, raylet)


def _for_workers(raylet):
    """Return what listens for a raylet's workers, or forks them."""
    titles = [" ".join(child.cmdline()) for child in psutil.Process(raylet).children()]
    return [one.strip() for one in titles if "rayguard.preloading" in one or "forks Ray's" in one]


def test_an_actor_whose_memory_runs_out_is_replaced_by_its_pool(pool):
    """It asks for that itself; it always has calls, so that no end of one is a time to end its process."""
    import ray

    pool.wait_ready(timeout_s=300)
    wanted, before = said(pool.generate(PROMPTS, SAMPLING)), len(incidents())
    while ray.get(pool.handles["rollout-1"].age.remote(), timeout=150) < WARM_S:
        assert said(pool.generate(PROMPTS, SAMPLING)) == wanted  # it grows from what it takes until then
    ray.get(pool.handles["rollout-1"].hoard.remote(3), timeout=150)
    until = time.monotonic() + 300
    while "rollout-1" in pool.handles:
        assert said(pool.generate(PROMPTS, SAMPLING)) == wanted
        assert time.monotonic() < until, incidents()[before:]
    assert pool.wait_ready(timeout_s=300) == 2
    assert said(pool.generate(PROMPTS, SAMPLING)) == wanted
    assert pool.status()["replaced"] == 1
    (told,) = [i for i in incidents()[before:] if i.kind == "host_oom"]
    assert told.outcome is Outcome.RECOVERED
    assert "its pool was asked to replace this actor" in told.notes[-1]


def test_what_vllm_would_choke_on_is_refused_at_the_door(pool):
    """By its own words where it has some; the others are answered."""
    prompts = [[1, 2], [3], [4], list(range(1, 256)), [100_000]]
    sampling = [SAMPLING, {"max_tokens": 16.5}, {"temprature": 1}, SAMPLING, SAMPLING]
    batch = pool.generate(prompts, sampling, ids=list("abcde"), partial="shrink")
    assert [g.id for g in batch] in (["a"], ["a", "d"])
    told = {g.id: str(g.error) for g in batch.missing}
    assert "max_tokens" in told["b"]
    assert "did you mean 'temperature'" in told["c"]
    assert "e" in told
    assert pool.status()["engines"]["rollout-0"]["state"] == "serving"


def test_an_engine_whose_weights_lie_wrong_is_outvoted_and_loaded_again(pool, folder):
    """All bytes arrived, from the first answer on it is damaged: only the others can tell."""
    import ray

    pool.resize(3)
    assert pool.wait_ready(timeout_s=300) == 3
    pool.generate(PROMPTS, SAMPLING)  # with log-probabilities: canaries are asked from now on
    tiny_qwen.build(folder / "2", 1, spread=0.2)
    (folder / "current").write_text("2")
    name = next(iter(pool.handles))
    ray.get(pool.handles[name].spoil_next.remote(3.0), timeout=150)
    before = len(incidents())
    assert pool.update_weights() == "2"
    assert pool.wait_ready(timeout_s=300) == 3
    (told,) = incidents()[before:]
    assert (told.kind, told.remedy, told.outcome) == ("weight_sync_failed", "push_again", Outcome.RECOVERED)
    assert "other engines answer otherwise than this one" in told.cause
    batch = pool.generate(PROMPTS[:1] * 24, SAMPLING)
    assert {sample.engine for sample in batch.samples} == set(pool.handles)
    assert len({tuple(sample.token_ids) for sample in batch.samples}) == 1
    assert {sample.weight_version for sample in batch.samples} == {"2"}
