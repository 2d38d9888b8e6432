"""A real vLLM engine and a weight source, with the user's plugins switched off: pushed, proved, kept, restored."""

from __future__ import annotations

import pytest

from examples.grpo.model import build
from rayguard import GuardPolicy, RestartBudget, Weights
from rayguard.engine.vllm import weight_push
from rayguard.recovery.incident import Outcome
from tests.engine.real import ENVIRONMENT, PROMPTS, Owner, incidents, told

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600), pytest.mark.filterwarnings("default")]


class Trainer:
    """Where the weights come from; counts how often it was asked."""

    def __init__(self, folder):
        self.files = {str(seed): build(folder / str(seed), seed) for seed in (1, 2)}
        self.version, self.asked = "1", 0

    def weights(self):
        self.asked += 1
        return Weights(self.version, path=str(self.files[self.version] / "model.safetensors"))


@pytest.fixture(scope="module")
def trained(tmp_path_factory, prefork):
    """A guarded engine that samples from a trainer's weights, and the trainer."""
    patch = pytest.MonkeyPatch()
    folder = tmp_path_factory.mktemp("weights")
    environment = {**ENVIRONMENT, "RAYGUARD_HOME": str(folder / "home"), "VLLM_PLUGINS": "none"}
    for name, value in environment.items():
        patch.setenv(name, value)
    trainer = Trainer(folder)
    owner = Owner(str(build(folder / "model", 0)), "LLM")
    often = RestartBudget(max_restarts=50, within_s=3600.0)
    owner.start_engine(weights=trainer.weights, policy=GuardPolicy(engine_budget=often))
    yield owner, trainer
    owner.stop_engine()
    patch.undo()


def answers(owner):
    from vllm import SamplingParams

    params = SamplingParams(temperature=0, max_tokens=100, logprobs=1, ignore_eos=True)
    return told(owner.with_engine(lambda e: e.generate(PROMPTS, params, use_tqdm=False)))


def pushes(monkeypatch):
    """Return the list that each push from now on adds its version to."""
    pushed = []
    for name in ("push", "push_async"):
        real = getattr(weight_push, name)
        monkeypatch.setattr(
            weight_push, name, lambda core, sent, real=real: pushed.append(sent.version) or real(core, sent)
        )
    return pushed


def test_weights_survive_a_kill_where_plugins_are_off(trained):
    """The rebuilt engine answers from the trainer's weights, to the bit, and not from the model's own."""
    owner, trainer = trained
    assert owner.engine_status()["weight_version"] == "1"
    first = answers(owner)
    trainer.version = "2"
    assert owner.update_weights() == "2"
    second = answers(owner)
    assert second != first
    before = len(incidents())
    with owner.struck("core", after_tokens=200):
        assert answers(owner) == second
    (incident,) = incidents()[before:]
    assert (incident.kind, incident.outcome) == ("engine_dead", Outcome.RECOVERED)
    assert incident.tokens_lost == 0
    assert owner.engine_status()["weight_version"] == "2"
    trainer.version = "1"
    assert owner.update_weights() == "1"
    assert answers(owner) == first


def test_what_the_engine_proves_to_have_is_not_sent_again(trained, monkeypatch):
    """Its workers say so; unless something may have changed them past us."""
    owner, trainer = trained
    trainer.version = "2"
    owner.update_weights()
    pushed, wanted = pushes(monkeypatch), answers(owner)
    assert owner.update_weights() == "2"
    assert pushed == []
    assert answers(owner) == wanted
    owner.with_engine(lambda engine: engine.collective_rpc("rayguard_weights"))  # it might be anything
    assert owner.update_weights() == "2"
    assert pushed == ["2"]
    assert owner.update_weights() == "2"
    assert pushed == ["2"]
