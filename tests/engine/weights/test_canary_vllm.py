"""Canaries of a real vLLM engine: weights that are damaged behind their receipt are found before anybody is served."""

from __future__ import annotations

import math
import threading

import pytest

from examples.grpo.text import sentences
from rayguard import GuardPolicy, RestartBudget, Weights
from rayguard.engine.vllm.async_client import run_on
from rayguard.engine.vllm.engine import VllmEngine
from rayguard.engine.weights.canary import TOKENS, disagreement
from rayguard.errors import WeightsError
from rayguard.recovery.incident import Outcome
from rayguard.testing import tiny_qwen
from tests.engine.load import Load, Looped, until
from tests.engine.real import ENVIRONMENT, PROMPTS, collect, incidents, told

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900), pytest.mark.filterwarnings("default")]


def saved(folder, seed):
    """Write a model that is sure of what it says: of one that is not, no canary can tell much."""
    texts = sentences(0, 2_000)
    return tiny_qwen.build(folder / str(seed), seed, texts=texts, spread=0.2, context=256)


class Stage(Looped):
    """An owner whose engine takes weights from a trainer's files, and what damages them."""

    def __init__(self, folder, kind):
        self.files = {str(seed): saved(folder, seed) for seed in (0, 1, 2)}
        self.version, self.damage, self.pushed, self.asked = "1", [], [], 0
        super().__init__(str(self.files["0"]), kind, worker_extension_cls="tests.engine.spoiling.Spoiler")

    def weights(self):
        return Weights(self.version, path=str(self.files[self.version] / "model.safetensors"))

    def start(self):
        often = RestartBudget(max_restarts=50, within_s=3600.0)
        self.start_engine(weights=self.weights, policy=GuardPolicy(engine_budget=often))

    def update(self):
        async def now():
            return await self.update_weights()

        return self.update_weights() if self.kind == "LLM" else self.run(now())

    def answers(self):
        from vllm import SamplingParams

        params = SamplingParams(temperature=0, max_tokens=200, logprobs=1, ignore_eos=True)
        if self.kind == "LLM":
            return told(self.with_engine(lambda e: e.generate(PROMPTS, params, use_tqdm=False)))
        self.asked += 1
        prefix = f"t{self.asked}"

        async def all_of_them():
            return await self.with_engine(lambda e: collect(e, PROMPTS, params, prefix))

        return told(self.run(all_of_them()))

    @property
    def proof(self):
        return self._engine_slot.proof


@pytest.fixture(scope="module", params=["LLM", "AsyncLLM"])
def stage(request, tmp_path_factory, prefork):
    """One engine for all tests of a kind, with callers that want log-probabilities; each leaves it serving."""
    patch = pytest.MonkeyPatch()
    folder = tmp_path_factory.mktemp("canary")
    for name, value in {**ENVIRONMENT, "RAYGUARD_HOME": str(folder / "home")}.items():
        patch.setenv(name, value)
    made = Stage(folder, request.param)
    push = VllmEngine.push

    def damaging(engine, weights, *, deadline_s):
        receipts = push(engine, weights, deadline_s=deadline_s)
        made.pushed.append(weights.version)
        if made.damage:
            spoil = ("spoil", None, (made.damage.pop(0),), None)
            if engine.is_async:
                run_on(engine.loop, engine.core.collective_rpc_async(*spoil), 60.0)
            else:
                engine.core.collective_rpc(*spoil)
        return receipts

    patch.setattr(VllmEngine, "push", damaging)
    made.start()
    made.answers()
    assert made.proof.canary is None, "before anybody wanted log-probabilities, it would have been dear"
    yield made
    made.close()
    patch.undo()


def serving(stage, version):
    """Bring ``version``, whole; return what it answers to callers."""
    stage.version, stage.damage = version, []
    assert stage.update() == version
    stage.pushed.clear()
    return stage.answers()


def test_a_canary_is_heard_by_nobody_else(stage, monkeypatch):
    """Not in the counters, not in what callers get, not in the frontend's books."""
    serving(stage, "1")
    before = stage.engine_status()["tokens_generated"]
    stage.version = "2"
    assert stage.update() == "2"
    canary = stage.proof.canary
    assert len(canary.positions) == TOKENS
    assert all(math.isfinite(logprob) for position in canary.positions for _, logprob in position)
    assert stage.engine_status()["tokens_generated"] == before
    assert stage._engine_slot.engine(1.0).progress().running == ()
    again = stage._engine_slot.engine(1.0).canary(deadline_s=10.0)
    assert disagreement(again, canary, 1e-3) == ""
    monkeypatch.setattr(stage._engine_slot.engine(1.0).client, "logprobs", False)
    terse = stage._engine_slot.engine(1.0).canary(deadline_s=10.0)
    assert (terse.bare, terse.tokens) == (True, canary.tokens), "where no caller wants log-probabilities"
    assert not stage._engine_slot.engine(1.0).canary(deadline_s=10.0, closely=True).bare
    monkeypatch.undo()
    serving(stage, "1")
    assert disagreement(stage.proof.canary, canary, 0.5), "other weights answer otherwise"


def test_damage_behind_the_receipt_is_found_and_loaded_away(stage):
    """A new life holds the right bytes and a broken norm: it serves nobody before that is mended."""
    right = serving(stage, "2")
    before = len(incidents())
    stage.damage = [3.0]
    with stage.struck("core", after_tokens=100):
        assert stage.answers() == right
    assert stage.pushed == ["2", "2"]
    assert stage.damage == []
    again, died = sorted(incidents()[before:], key=lambda i: i.kind, reverse=True)
    assert (died.kind, died.outcome) == ("engine_dead", Outcome.RECOVERED)
    assert (again.kind, again.outcome) == ("weight_sync_failed", Outcome.RECOVERED)
    assert "answers otherwise than it should with these weights" in again.cause
    assert stage.answers() == right


def test_a_life_that_stays_damaged_is_replaced(stage):
    """Twice the same wrong answer: the engine is rebuilt, and callers get what they would have got."""
    right = serving(stage, "1")
    epoch = stage.engine_status()["epoch"]
    stage.damage = [3.0, 3.0]
    with stage.struck("core", after_tokens=100):
        assert stage.answers() == right
    assert stage.engine_status()["epoch"] == epoch + 1
    assert stage.pushed == ["1"] * 3
    assert stage.engine_status()["settings"] == []


def test_a_model_that_makes_no_numbers_serves_nobody(stage):
    """NaN behind finite weights, in two lives: refused, said to whoever asks, and gone with the next version."""
    right = serving(stage, "1")
    stage.version, stage.damage = "2", [math.nan]
    assert stage.update() == "2", "in the next life: it was the engine's damage, and not the weights'"
    assert serving(stage, "1") == right
    stage.version, stage.damage = "2", [math.nan, math.nan]
    with pytest.raises(WeightsError, match=r"weights '2' are not served.*nan"):
        stage.update()
    with pytest.raises(WeightsError, match="weights '2' are not served"):
        stage.answers()
    assert stage.pushed == ["2", "2"]
    assert serving(stage, "1") == right, "in a new life: NaN stays in the cache of the one before"


def unfit(file, folder, change):
    """Save the tensors of ``file`` as ``change`` leaves them."""
    from safetensors.torch import load_file, save_file

    tensors = load_file(file)
    change(tensors)
    save_file(tensors, folder / "model.safetensors")
    return folder


def without_a_layer(tensors):
    for name in [name for name in tensors if ".layers.1." in name]:
        del tensors[name]


def with_a_longer_norm(tensors):
    name = next(name for name in tensors if name.endswith("norm.weight"))
    tensors[name] = tensors[name].repeat(2)


def test_a_push_that_does_not_fit_leaves_the_engine_as_it_was(stage, tmp_path):
    """Refused unseen, or by its worker and undone: the same process serves on, with what it had."""
    whole = serving(stage, "1")
    pid, told_before = stage.pid("core"), len(incidents())
    stage.files["unfit"] = unfit(stage.files["2"] / "model.safetensors", tmp_path, with_a_longer_norm)
    stage.version = "unfit"
    with pytest.raises(WeightsError, match=r"do not fit.*norm.weight' is F32"):
        stage.update()
    stage.files["half"] = unfit(stage.files["2"] / "model.safetensors", tmp_path, without_a_layer)
    stage.version = "half"
    for _ in range(3):
        with pytest.raises(WeightsError, match=r"incomplete.*layers\.1\."):
            stage.update()
        assert stage.answers() == whole
    assert stage.pushed == ["1", "1"], "undone twice, and then refused"
    assert (stage.pid("core"), stage.engine_status()["settings"]) == (pid, [])
    assert [i.remedy for i in incidents()[told_before:]] == ["keep_weights"] * 2
    serving(stage, "2")


def test_an_engine_with_room_is_asked_beside_its_requests(stage):
    """An AsyncLLM; under an LLM, whose caller reads what the core sends, nobody else can."""
    serving(stage, "1")
    alone, engine = stage.proof.canary, stage._engine_slot.engine(1.0)
    made = stage.engine_status()["tokens_generated"]
    busy = threading.Thread(target=stage.answers)
    busy.start()
    until(lambda: stage.engine_status()["tokens_generated"] > made)
    beside = engine.canary(deadline_s=10.0)
    assert engine.progress().running, "it came too late to be beside them"
    busy.join(60)
    assert disagreement(alone, beside, 0.5) == "" if stage.kind == "AsyncLLM" else beside is None


def test_callers_are_not_disturbed_by_canaries(stage):
    """Pushes to a full engine: every request gets its whole answer, and no canary waits in its queue."""
    serving(stage, "1")
    before = len(incidents())
    with Load(stage).going():
        for version in ("2", "1", "2"):
            stage.version = version
            assert stage.update() == version
    assert incidents()[before:] == []
    right = stage.answers()
    assert serving(stage, "2") == right
