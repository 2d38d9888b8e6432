"""The audit on a real vLLM engine: cached keys and values that were damaged give wrong tokens, and that is told."""

from __future__ import annotations

import itertools

import pytest

from examples.grpo.text import sentences
from rayguard import GuardPolicy, RestartBudget
from rayguard.recovery.incident import Outcome
from rayguard.testing import tiny_qwen
from tests.engine.load import Looped, until
from tests.engine.real import ENVIRONMENT, collect, incidents

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600), pytest.mark.filterwarnings("default")]

_ids = itertools.count()
PROMPTS = [{"prompt_token_ids": [20 + i, 7, 90 + 3 * i, 11] * 25} for i in range(4)]


class Audited(Looped):
    """An owner whose engine keeps what it computed of prompts, and audits every greedy answer."""

    def start(self):
        often = RestartBudget(max_restarts=50, within_s=3600.0)
        self.start_engine(policy=GuardPolicy(engine_budget=often, audit=1.0))
        tally = self._engine_slot._recovery.tally  # of all engines of this name in this process
        self._before = tally.audited, tally.audited_wrong

    def answers(self, **params):
        from vllm import SamplingParams

        params = SamplingParams(**{"temperature": 0, "max_tokens": 24, "ignore_eos": True, **params})
        if self.kind == "LLM":
            return tokens(self.with_engine(lambda e: e.generate(PROMPTS, params, use_tqdm=False)))
        prefix = f"t{next(_ids)}"

        async def all_of_them():
            return await self.with_engine(lambda e: collect(e, PROMPTS, params, prefix))

        return tokens(self.run(all_of_them()))

    def rpc(self, method):
        if self.kind == "LLM":
            return self.with_engine(lambda e: e.collective_rpc(method))

        async def call():
            return await self.with_engine(lambda e: e.collective_rpc(method))

        return self.run(call())

    def told(self):
        return f"{self.audited} {self.engine_status()} {mine()}"

    @property
    def audited(self):
        tally = self._engine_slot._recovery.tally
        return tally.audited - self._before[0], tally.audited_wrong - self._before[1]


def mine():
    """Return its incidents: owners of other tests in this process may still be ending."""
    return [one for one in incidents() if one.target == Audited.__name__]


def tokens(outputs):
    return [tuple(output.outputs[0].token_ids) for output in outputs]


@pytest.fixture(scope="module", params=["LLM", "AsyncLLM"])
def owner(request, tmp_path_factory, prefork):
    patch = pytest.MonkeyPatch()
    folder = tmp_path_factory.mktemp("audit")
    for name, value in {**ENVIRONMENT, "RAYGUARD_HOME": str(folder / "home")}.items():
        patch.setenv(name, value)
    model = tiny_qwen.build(folder / "model", 0, texts=sentences(0, 2_000), spread=0.2, context=256)
    made = Audited(
        str(model),
        request.param,
        enable_prefix_caching=True,
        block_size=32,
        worker_extension_cls="tests.engine.spoiling.Spoiler",
    )
    made.start()
    yield made
    made.close()
    patch.undo()


def test_wrong_tokens_out_of_a_damaged_cache_are_told_and_the_engine_is_replaced(owner):
    right = owner.answers()
    until(lambda: owner.audited == (4, 0), owner.told)
    owner.answers(temperature=1.0)
    owner.answers(stop=["never said"])
    until(lambda: owner.audited == (8, 0), owner.told)  # and nothing that was sampled
    assert mine() == []

    owner.rpc("spoil_cache")
    wrong = owner.answers()
    assert wrong != right, "the damage must show"
    until(lambda: [one.outcome for one in mine()] == [Outcome.RECOVERED], owner.told)
    (told,) = mine()
    assert told.signature == "rayguard.audit.wrong_tokens"
    assert told.settings == ()
    assert owner.answers() == right
    until(lambda: owner.audited[0] >= 13, owner.told)
    assert len(mine()) == 1
