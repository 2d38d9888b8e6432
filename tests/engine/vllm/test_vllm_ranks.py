"""An engine of several ranks on the CPU, for real: any of them may die."""

from __future__ import annotations

import pytest

from examples.grpo.model import build
from rayguard import GuardPolicy
from rayguard.faults.fault import Role
from rayguard.process.cleanup import shm
from rayguard.recovery.incident import Outcome
from tests.engine.real import ENVIRONMENT, PROMPTS, Owner, incidents

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
