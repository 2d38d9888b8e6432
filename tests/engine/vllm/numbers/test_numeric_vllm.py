"""NaN and infinite logits in a real vLLM engine: that request ends with an error and is told of; others are as ever."""

from __future__ import annotations

import itertools

import pytest

from examples.grpo.text import sentences
from rayguard import GuardPolicy
from rayguard.faults.diagnosis import Kind, Scope
from rayguard.recovery.incident import Outcome
from rayguard.testing import tiny_qwen
from tests.engine.load import Looped, until
from tests.engine.real import ENVIRONMENT, collect, incidents

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600), pytest.mark.filterwarnings("default")]

_ids = itertools.count()
BAD = 3
PROMPTS = [{"prompt_token_ids": [20 + i, 7, 90 + 3 * i, 11] * 25} for i in range(4)]
WHY = "the logits of its token {} are NaN or infinite"


class Asked(Looped):
    """An owner of an engine whose workers make NaN of the words they are told to."""

    def start(self, **policy):
        self.start_engine(policy=GuardPolicy(standby="process", **policy))
        self.tally = self._engine_slot._recovery.tally  # of all engines of this name in this process

    def answers(self, prompts=PROMPTS, **params):
        from vllm import SamplingParams

        params = SamplingParams(**{"temperature": 0, "max_tokens": 16, "ignore_eos": True, **params})
        if self.kind == "LLM":
            return self.with_engine(lambda e: e.generate(prompts, params, use_tqdm=False))
        prefix = f"n{next(_ids)}"

        async def all_of_them():
            return await self.with_engine(lambda e: collect(e, prompts, params, prefix))

        return self.run(all_of_them(), limit_s=200.0)

    def rpc(self, method, *args):
        if self.kind == "LLM":
            return self.with_engine(lambda e: e.collective_rpc(method, args=args))

        async def call():
            return await self.with_engine(lambda e: e.collective_rpc(method, args=args))

        return self.run(call())


def tokens(outputs):
    return [tuple(output.outputs[0].token_ids) for output in outputs]


def ends(outputs):
    return [(output.outputs[0].finish_reason, output.outputs[0].stop_reason) for output in outputs]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("numeric")
    return tiny_qwen.build(folder / "model", 0, texts=sentences(0, 2_000), spread=0.2, context=256)


def test_where_the_policy_says_no_nothing_is_looked_at(model, prefork, tmp_path, monkeypatch):
    """Garbage, said by nobody: vLLM's own behaviour. First, so that no other engine runs beside it."""
    for name, value in {**ENVIRONMENT, "RAYGUARD_HOME": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    off = Asked(str(model), "LLM", worker_extension_cls="tests.engine.vllm.numbers.nan_words.NanWords")
    off.start(check_logits=False)
    try:
        assert off.rpc("counts") == [False]
        off.rpc("nan_for", [PROMPTS[BAD]["prompt_token_ids"][0]])
        got = off.answers()
        assert ends(got) == [("length", None)] * 4
        assert set(tokens(got)[BAD]) == {0}
        assert incidents() == []
    finally:
        off.close()


@pytest.fixture(scope="module", params=["LLM", "AsyncLLM"])
def engine(request, model, tmp_path_factory, prefork):
    patch = pytest.MonkeyPatch()
    home = tmp_path_factory.mktemp("home")
    for name, value in {**ENVIRONMENT, "RAYGUARD_HOME": str(home)}.items():
        patch.setenv(name, value)
    made = Asked(
        str(model),
        request.param,
        enable_prefix_caching=True,
        block_size=32,
        worker_extension_cls="tests.engine.vllm.numbers.nan_words.NanWords",
    )
    made.start()
    yield made
    made.close()
    patch.undo()


@pytest.fixture
def owner(engine):
    yield engine
    engine.rpc("sound")


def test_who_gets_nan_ends_with_an_error_and_others_are_right(owner):
    """At the first token, sampled and greedy; with log-probabilities; and what comes after it in its blocks."""
    right = owner.answers()
    assert ends(right) == [("length", None)] * 4
    before, told = owner.tally.spoiled, len(incidents())
    pids = owner.engine_status()["pids"]

    owner.rpc("nan_for", [PROMPTS[BAD]["prompt_token_ids"][0]])
    for params in ({}, {"temperature": 1.0}, {"logprobs": 2}):
        got = owner.answers(**params)
        if "temperature" not in params:
            assert tokens(got)[:BAD] == tokens(right)[:BAD]
        assert tokens(got)[BAD] == ()
        assert ends(got)[:BAD] == [("length", None)] * BAD
        reason, why = ends(got)[BAD]
        assert reason == "error"
        assert why.startswith(f"NumericError: {WHY.format(1)}")
    assert owner.tally.spoiled == before + 3
    until(lambda: len(incidents()) > told)
    incident = incidents()[-1]
    assert (incident.kind, incident.scope) == (Kind.NUMERIC_NAN.value, Scope.REQUEST.value)
    assert (incident.outcome, incident.requests) == (Outcome.ANSWERED, 1)
    assert incident.cause.count("'") == 2, "the request is named"

    owner.rpc("sound")
    assert tokens(owner.answers()) == tokens(right)
    assert owner.engine_status()["pids"] == pids, "nothing was restarted for it"
    assert owner.engine_status()["requests_running"] == 0


def test_tokens_before_the_bad_one_stay(owner):
    """NaN that comes up in the middle of an answer: it ends there, with what it had."""
    right = tokens(owner.answers())
    asked = {token for prompt in PROMPTS for token in prompt["prompt_token_ids"]}
    which, at = next(
        (i, at)
        for i, one in enumerate(right)
        for at, token in enumerate(one[:-1])
        if token not in asked.union(*right[:i], *right[i + 1 :], one[:at])
    )
    owner.rpc("nan_for", [right[which][at]])
    got = owner.answers()
    assert tokens(got) == [*right[:which], right[which][: at + 1], *right[which + 1 :]]
    reason, why = ends(got)[which]
    assert reason == "error"
    assert WHY.format(at + 2) in why
    owner.rpc("sound")
    assert tokens(owner.answers()) == right


def test_plus_infinity_is_told_and_what_masks_make_is_not(owner):
    """A row with -inf is what allowed tokens leave; +inf makes NaN of every probability."""
    owner.rpc("infinite", 9, -1.0)
    assert ends(owner.answers(temperature=1.0, allowed_token_ids=[9, 30, 31])) == [("length", None)] * 4
    owner.rpc("sound")
    owner.rpc("infinite", 9, 1.0)
    assert [reason for reason, _ in ends(owner.answers(temperature=1.0))] == ["error"] * 4
    owner.rpc("sound")
    assert ends(owner.answers(temperature=1.0)) == [("length", None)] * 4
