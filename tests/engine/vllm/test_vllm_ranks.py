"""An engine of several ranks on the CPU, for real: any of them may die."""

from __future__ import annotations

import pytest

from examples.grpo.model import build
from rayguard import GuardPolicy, Weights
from rayguard.engine.vllm.async_client import run_on
from rayguard.engine.weights.canary import torn
from rayguard.faults.fault import Role
from rayguard.process.cleanup import shm
from rayguard.process.identity import ProcessId
from rayguard.recovery.incident import Outcome
from tests.engine.load import PATIENCE_S, Looped, until
from tests.engine.real import ENVIRONMENT, PROMPTS, Owner, collect, incidents

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600), pytest.mark.filterwarnings("default")]


def test_the_death_of_the_second_rank_of_two_heals(tmp_path, monkeypatch, prefork):
    """Same tokens, the cause names that rank, and nothing stays of either engine: no process, no memory."""
    for name, value in {**ENVIRONMENT, "RAYGUARD_HOME": str(tmp_path / "home")}.items():
        monkeypatch.setenv(name, value)
    ranks = {"tensor_parallel_size": 2, "distributed_executor_backend": "mp"}
    owner = Owner(str(build(tmp_path / "model", 0)), "LLM", **ranks)
    owner.start_engine(policy=GuardPolicy())

    def known():
        return [one.process for one in owner._engine_slot.engine(300.0).processes()]

    def generate():
        from vllm import SamplingParams

        params = SamplingParams(temperature=0, max_tokens=100, ignore_eos=True)
        outputs = owner.with_engine(lambda e: e.generate(PROMPTS, params, use_tqdm=False))
        return [tuple(one.outputs[0].token_ids) for one in outputs]

    wanted, family = generate(), known()
    used = {path for process in family for path in shm.mapped_segments(process)}
    second = owner.engine_status()["pids"]["workers"][1]
    monkeypatch.setattr(Owner, "pid", lambda *_: second)
    with owner.struck("second rank", after_tokens=200):
        assert generate() == wanted
    (incident,) = incidents()
    assert incident.outcome is Outcome.RECOVERED
    assert f"{Role.ENGINE_WORKER.value} process {second} was killed by signal 9" in incident.cause
    family, used = family + known(), used | {p for process in known() for p in shm.mapped_segments(process)}
    owner.stop_engine()
    assert len(family) == 6
    assert not [process for process in family if process.alive()]
    assert not [path for path in used if path.exists()]


class Ranks(Looped):
    """An engine of two data-parallel ranks that takes weights from a file."""

    def __init__(self, model):
        spoilable = {"worker_extension_cls": "tests.engine.spoiling.Spoiler"}
        super().__init__(str(model), "AsyncLLM", data_parallel_size=2, **spoilable)
        self.version, self.asked = Weights("7", path=str(model / "model.safetensors")), 0

    def life(self):
        return self._engine_slot.engine(PATIENCE_S)

    def family(self):
        """Return its processes: the cores with their workers, and the one that spreads requests."""
        coordinator = ProcessId.of(self.life().core.resources.coordinator.proc.pid)
        return [*(one.process for one in self.life().processes()), coordinator]

    def versions(self):
        return [receipt.version for receipt in self.life().receipts(deadline_s=60.0)]

    def generate(self):
        from vllm import SamplingParams

        params = SamplingParams(temperature=0, max_tokens=100, ignore_eos=True)
        self.asked += 1
        prefix = f"r{self.asked}"

        async def all_of_them():
            return await self.with_engine(lambda e: collect(e, PROMPTS, params, prefix))

        return [tuple(one.outputs[0].token_ids) for one in self.run(all_of_them(), PATIENCE_S)]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory, prefork):
    patch = pytest.MonkeyPatch()
    folder = tmp_path_factory.mktemp("ranks")
    for name, value in {**ENVIRONMENT, "RAYGUARD_HOME": str(folder / "home")}.items():
        patch.setenv(name, value)
    made = Ranks(build(folder / "model", 0))
    made.start_engine(policy=GuardPolicy(), weights=lambda: made.version)
    yield made
    made.close()
    patch.undo()


def test_the_death_of_the_second_data_parallel_rank_heals(ranks, monkeypatch):
    """Same tokens; it is told as its own, and nothing stays of its engine, the one that spreads included."""
    wanted, began = ranks.generate(), ranks.family()
    assert ranks.versions() == ["7", "7"], "a receipt from each"
    used = {path for process in began for path in shm.mapped_segments(process)}
    second = ranks.life().processes()[2]
    assert second.role is Role.ENGINE_CORE
    monkeypatch.setattr(Ranks, "pid", lambda *_: second.process.pid)
    with ranks.struck("second rank", after_tokens=200):
        assert ranks.generate() == wanted
    incident = incidents()[-1]
    assert incident.outcome is Outcome.RECOVERED
    assert f"{Role.ENGINE_CORE.value} process {second.process.pid} was killed by signal 9" in incident.cause
    assert ranks.versions() == ["7", "7"]
    assert len(began) == 5
    until(lambda: not any(process.alive() for process in began))
    until(lambda: not any(path.exists() for path in used))


def test_a_data_parallel_rank_that_answers_otherwise_is_named(ranks):
    """Its receipt is right: each rank has a canary of its own."""
    ranks.generate()
    heard = ranks.life().canary(deadline_s=60.0)
    assert (len(heard.ranks), torn(heard, 0.5)) == (1, "")
    core = ranks.life().core
    spoil = core._call_utility_async(
        "collective_rpc", "spoil", None, (30.0,), None, engine=core.core_engines[1]
    )
    run_on(ranks.life().loop, spoil, 60.0)
    told = torn(ranks.life().canary(deadline_s=60.0), 0.5)
    assert told.startswith("its data-parallel rank 1 answers otherwise than rank 0: ")


def test_nothing_stays_of_data_parallel_ranks(ranks):
    """No process and no shared memory after a normal end."""
    family = ranks.family()
    used = {path for process in family for path in shm.mapped_segments(process)}
    ranks.stop_engine()
    until(lambda: not any(process.alive() for process in family))
    until(lambda: not any(path.exists() for path in used))
