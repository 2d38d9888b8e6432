"""Actors with real vLLM engines are killed on real Ray: their engines go on, or end, and nothing is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import rayguard
from rayguard import GuardPolicy
from rayguard.engine.adoption import lease as leases
from rayguard.errors import WeightsError
from rayguard.process.identity import ProcessId
from rayguard.recovery.incident import Outcome
from rayguard.testing import tiny_qwen
from tests.benchmarks.trials.witness import CoreWitness, name_of, witnessed
from tests.engine.real import ENVIRONMENT

pytestmark = [
    pytest.mark.ray,
    pytest.mark.vllm,
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("default"),
]

PATHS = [str(Path(__file__).parent), str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH", "")]
PROMPTS = [[20 + n, 7, 90 + 3 * n, 11] * 12 for n in range(6)]
TOKENS = 180
ENDED_S = 5.0  # after its actor's end on purpose, as is promised
LOADED = 2.0  # times as long, on a machine that does other things as well


class Rollout(rayguard.RolloutMixin):
    """Owns an engine; makes itself ill on request."""

    def __init__(self, model: str, folder: str, keep_s: float = 30.0):
        self.model, self.folder = model, Path(folder)
        self.start_engine(
            weights=self.weights if (self.folder / "current").exists() else None,
            policy=GuardPolicy(adopt_within_s=keep_s),
        )

    def weights(self):
        version = (self.folder / "current").read_text()
        return rayguard.Weights(version, path=str(self.folder / version / "model.safetensors"))

    def build_engine(self, settings):
        from vllm import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        if (self.folder / "dies_once").exists():
            (self.folder / "dies_once").unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        witnesses = self.folder / "witnesses"
        args = settings.as_kwargs(
            model=self.model,
            dtype="float32",
            enforce_eager=True,
            max_model_len=256,
            max_num_seqs=8,
            kv_cache_memory_bytes=64 << 20,
            generation_config="vllm",
            **({"seed": 1} if (self.folder / "another_seed").exists() else {}),
            **(witnessed(witnesses, self.folder / "fuse") if witnesses.exists() else {}),
        )
        return AsyncLLM.from_engine_args(AsyncEngineArgs(**args))

    async def generate(self, number, tokens=TOKENS):
        from vllm import SamplingParams

        params = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True, repetition_penalty=1.2)

        async def use(engine):
            async for output in engine.generate(
                {"prompt_token_ids": PROMPTS[number]}, params, f"request-{number}"
            ):
                last = output
            return list(last.outputs[0].token_ids)

        return await self.with_engine(use)

    async def own_call(self):
        async def use(engine):
            await engine.collective_rpc("check_health")

        await self.with_engine(use)

    async def update(self):
        return await self.update_weights()

    async def status(self):
        return {**self.engine_status(), "pid": os.getpid()}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """One node, whose workers write to a journal of their own."""
    import ray

    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**ENVIRONMENT, "RAY_AUTH_MODE": "disabled"}.items():
            patch.setenv(name, value)
        patch.setenv("RAYGUARD_HOME", str(tmp_path_factory.mktemp("home")))
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, PATHS)))
        context = ray.init(
            address="local", num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level="ERROR"
        )
        try:
            yield context
        finally:
            ray.shutdown()


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(tiny_qwen.build(tmp_path_factory.mktemp("model"), spread=0.2))


@pytest.fixture(scope="module")
def expected(cluster, model, tmp_path_factory):
    """What an engine that nothing happens to answers."""
    actor = made(model, tmp_path_factory.mktemp("calm"))
    try:
        return answers(actor)
    finally:
        end(actor)


def without_a_tensor(file, folder):
    from safetensors.torch import load_file, save_file

    tensors = load_file(file)
    del tensors[next(name for name in tensors if name.endswith("down_proj.weight"))]
    folder.mkdir()
    save_file(tensors, folder / file.name)


def made(model, folder, **options):
    """Return an actor whose engine was forked, as nearly all are: where the preload takes too long, one is not."""
    import ray

    actor = ray.remote(num_cpus=0)(Rollout).remote(model, str(folder), **options)
    status = get(actor.status.remote())
    if os.getpgid(status["pids"]["core"]) == os.getpgid(status["pid"]):
        os.kill(status["pids"]["core"], signal.SIGKILL)
        get(actor.generate.remote(0, 1))
    return actor


def get(reference, timeout_s=300):
    import ray

    return ray.get(reference, timeout=timeout_s)


def answers(actor):
    return get([actor.generate.remote(number) for number in range(len(PROMPTS))])


def cut(actor):
    """Begin requests, wait until tokens come, and kill the actor; return what was running and who was killed."""
    before = get(actor.status.remote())
    running = [actor.generate.remote(number) for number in range(len(PROMPTS))]
    made_before, until = before["tokens_generated"], time.monotonic() + 60
    while get(actor.status.remote())["tokens_generated"] < made_before + 8 * len(PROMPTS):
        assert time.monotonic() < until, "no token came"
    os.kill(before["pid"], signal.SIGKILL)
    return running, before


def end(actor):
    import ray

    ray.kill(actor)


def gone(core: ProcessId, within_s: float) -> bool:
    until = time.monotonic() + within_s
    while core.alive() and time.monotonic() < until:
        threading.Event().wait(0.02)
    return not core.alive()


def core_of(status) -> ProcessId:
    found = ProcessId.of(status["pids"]["core"])
    assert found is not None
    return found


def left():
    from rayguard.home import home

    return list(leases.leases(home()))


def deaths():
    from rayguard.recovery.journal import default_journal

    return [one for one in default_journal().read() if one.kind == "actor_died"]


def test_an_engine_goes_on_in_the_next_life_of_its_actor(model, expected, tmp_path):
    """The same processes, the same answers, told as what it was; and it heals as any other afterwards."""
    (tmp_path / "witnesses").mkdir()
    actor = made(model, tmp_path)
    running, before = cut(actor)
    assert get(running) == expected
    after = get(actor.status.remote())
    assert after["pid"] != before["pid"]
    assert after["pids"] == before["pids"]
    assert after["adopted"]
    witness = CoreWitness(tmp_path / "witnesses" / name_of(core_of(after)))
    cut_short, gone_on = witness.read()[: len(PROMPTS)], witness.read()[len(PROMPTS) :]
    assert all(one.now - one.start < TOKENS for one in cut_short), "nobody could hear of the rest"
    assert len(gone_on) == len(PROMPTS)
    told = deaths()[-1]
    assert told.outcome is Outcome.RECOVERED
    assert any("engine outlived it" in note for note in told.notes), told.notes
    os.kill(after["pids"]["core"], signal.SIGKILL)
    assert answers(actor) == expected
    healed = get(actor.status.remote())
    assert not healed["adopted"]
    assert healed["epoch"] == after["epoch"] + 1
    running, _ = cut(actor)  # of the life that adopted once: its own engine is left as well
    assert get(running) == expected
    last = get(actor.status.remote())
    assert last["adopted"]
    assert last["pids"] == healed["pids"]
    core = core_of(last)
    end(actor)
    assert gone(core, LOADED * ENDED_S)
    assert left() == []


def test_an_engine_with_weights_proves_what_it_holds(model, cluster, tmp_path):
    """As after a restart, it serves with what the source says now, pushed or proved to be there."""
    for version, spread in (("1", 0.3), ("2", 0.4)):
        tiny_qwen.build(tmp_path / version, spread=spread)
    without_a_tensor(tmp_path / "1" / "model.safetensors", tmp_path / "incomplete")
    (tmp_path / "current").write_text("1")
    actor = made(model, tmp_path)
    first = answers(actor)
    running, before = cut(actor)
    assert get(running) == first
    after = get(actor.status.remote())
    assert (after["pids"], after["weight_version"]) == (before["pids"], "1")
    (tmp_path / "current").write_text("incomplete")
    with pytest.raises(WeightsError, match=r"compared with weights '1'.*is missing.*No engine was touched"):
        get(actor.update.remote())  # which the life before this one pushed
    assert answers(actor) == first
    (tmp_path / "current").write_text("2")
    os.kill(after["pid"], signal.SIGKILL)
    second = answers(actor)
    assert second != first
    now = get(actor.status.remote())
    assert (now["pids"], now["weight_version"]) == (before["pids"], "2")
    core = core_of(now)
    end(actor)
    assert gone(core, LOADED * ENDED_S)


@pytest.mark.parametrize("ill", ["own call", "stopped", "other settings"])
def test_an_engine_that_is_not_as_it_should_be_is_ended(ill, model, expected, tmp_path):
    """One of whose state nobody knows, one that does not answer, one that is not what the recipe builds now."""
    actor = made(model, tmp_path)
    before = get(actor.status.remote())
    core = core_of(before)
    if ill == "own call":
        get(actor.own_call.remote())
    elif ill == "stopped":
        os.kill(core.pid, signal.SIGSTOP)
    else:
        (tmp_path / "another_seed").touch()
    os.kill(before["pid"], signal.SIGKILL)
    assert answers(actor) == expected
    after = get(actor.status.remote())
    assert not core.alive()
    assert after["pids"]["core"] != core.pid
    assert not after["adopted"]
    end(actor)
    assert gone(core_of(after), LOADED * ENDED_S)


def test_an_heir_that_dies_as_it_adopts_leaves_the_engine_to_the_next(model, expected, tmp_path):
    """Nothing is lost by it, and nothing left."""
    actor = made(model, tmp_path)
    (tmp_path / "dies_once").touch()
    running, before = cut(actor)
    assert get(running) == expected
    after = get(actor.status.remote())
    assert not (tmp_path / "dies_once").exists(), "the fault was never made"
    assert after["pids"] == before["pids"]
    end(actor)
    assert gone(core_of(after), LOADED * ENDED_S)


def test_an_engine_ends_with_its_actor_where_nobody_may_adopt_it(model, cluster, tmp_path):
    """``adopt_within_s=0``: as before."""
    actor = made(model, tmp_path, keep_s=0.0)
    before = get(actor.status.remote())
    core = core_of(before)
    os.kill(before["pid"], signal.SIGKILL)
    assert gone(core, LOADED * ENDED_S)
    assert not get(actor.status.remote())["adopted"]
    end(actor)


DRIVER = """
import os, signal, sys
sys.path[:0] = {paths!r}
import ray
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in a shell's background ignores it
from test_adoption_ray import made, get
ray.init(address={address!r}, logging_level="ERROR", log_to_driver=False)
actor = made({model!r}, {folder!r})
print(get(actor.status.remote())["pids"]["core"], flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("ends", ["job, killed", "job", "cluster"])
def test_an_engine_ends_with_its_job(ends, model, cluster, tmp_path):
    """The driver's end is the end of the actor for good: nobody is waited for. So is that of a cluster of its own."""
    address = "local" if ends == "cluster" else cluster.address_info["gcs_address"]
    source = DRIVER.format(paths=[p for p in PATHS if p], address=address, model=model, folder=str(tmp_path))
    driver = subprocess.Popen(
        [sys.executable, "-c", source], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert driver.stdout is not None
        core = ProcessId.of(int(driver.stdout.readline()))
        assert core is not None
        driver.send_signal(signal.SIGKILL if ends == "job, killed" else signal.SIGINT)
        assert gone(core, LOADED * ENDED_S)
    finally:
        driver.kill()
        driver.wait()
    assert left() == []
