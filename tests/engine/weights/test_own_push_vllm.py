"""Real vLLM engines whose users push weights by their own worker extension, and whose core is killed then."""

from __future__ import annotations

import os
import signal

import pytest

from examples.grpo.model import build
from rayguard import GuardPolicy, RestartBudget
from rayguard.errors import WeightsError
from rayguard.recovery.incident import Outcome
from tests.engine.load import Looped, until
from tests.engine.real import ENVIRONMENT, PROMPTS, collect, incidents, told

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600), pytest.mark.filterwarnings("default")]
FACTOR = 3.0


class Stage(Looped):
    """An owner that pushes as verl and OpenRLHF do: ``spoil`` makes other weights of those that are there."""

    def __init__(self, folder, kind):
        super().__init__(str(build(folder, 0)), kind, worker_extension_cls="tests.engine.spoiling.Spoiler")
        self.asked = 0

    def start(self, weights):
        often = RestartBudget(max_restarts=50, within_s=3600.0)
        self.start_engine(weights=weights, policy=GuardPolicy(engine_budget=often))

    def call(self, method, *args):
        """Call into the workers."""
        if self.kind == "LLM":
            return self.with_engine(lambda engine: engine.collective_rpc(method, args=args))

        async def calling():
            return await self.with_engine(lambda engine: engine.collective_rpc(method, args=args))

        return self.run(calling())

    def answers(self):
        from vllm import SamplingParams

        params = SamplingParams(temperature=0, max_tokens=100, ignore_eos=True)
        if self.kind == "LLM":
            return told(self.with_engine(lambda engine: engine.generate(PROMPTS, params, use_tqdm=False)))
        self.asked += 1
        prefix = f"t{self.asked}"

        async def asking():
            return await self.with_engine(lambda engine: collect(engine, PROMPTS, params, prefix))

        return told(self.run(asking()))

    def kill(self):
        epoch = self.engine_status()["epoch"]
        os.kill(self.pid("core"), signal.SIGKILL)
        until(lambda: self.engine_status()["epoch"] > epoch and self.serving)


@pytest.fixture
def stage(request, tmp_path, monkeypatch, prefork):
    for name, value in {**ENVIRONMENT, "RAYGUARD_HOME": str(tmp_path / "home")}.items():
        monkeypatch.setenv(name, value)
    made = Stage(tmp_path / "model", request.param)
    yield made
    made.close()


@pytest.mark.parametrize("stage", ["LLM", "AsyncLLM"], indirect=True)
def test_the_checkpoint_is_never_served_for_what_was_pushed(stage, tmp_path):
    """Who runs and who comes gets an error until the push is made again; a call that changes nothing is none."""
    stage.start(None)
    base = stage.answers()
    stage.call("look")
    stage.kill()
    assert stage.answers() == base
    other = str(build(tmp_path / "other", 1))
    for push in (("spoil", FACTOR), ("reload_weights", None, other)):
        stage.call(*push)
        pushed = stage.answers()
        assert pushed != base
        with pytest.raises(WeightsError, match=r"start_engine\(weights=lambda engine"), stage.struck("core"):
            stage.answers()
        stage.call("look")
        with pytest.raises(WeightsError, match="pushed by your own code"):
            stage.answers()
        assert incidents()[-1].outcome is Outcome.STATE_LOST
        stage.call(*push)
        assert stage.answers() == pushed
    assert stage.engine_status()["requests_running"] == 0


@pytest.mark.parametrize("stage", ["AsyncLLM"], indirect=True)
def test_the_users_own_push_is_made_into_the_next_engine_and_requests_go_on(stage):
    """Callers notice nothing."""
    stage.start(lambda engine: engine.collective_rpc("spoil", args=(FACTOR,)))
    pushed = stage.answers()
    with stage.struck("core"):
        assert stage.answers() == pushed
    assert incidents()[-1].outcome is Outcome.RECOVERED
    assert stage.answers() == pushed
