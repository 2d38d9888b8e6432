"""What a new core is asked for: exactly the missing rest."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayguard.engine.continuation import Exact, continued, drift, mark_of, spent, why_not

OUTPUTS, ALL = Exact(outputs=True), Exact(outputs=True, hidden=True)


@dataclass
class Params:
    """The fields of vLLM's SamplingParams that matter here."""

    max_tokens: int | None = 16
    min_tokens: int = 0
    temperature: float = 1.0
    seed: int | None = None
    prompt_logprobs: int | None = None
    prompt_logprob_token_ids: list | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    structured_outputs: object = None
    bad_words: list = field(default_factory=list)
    thinking_token_budget: int | None = None
    repetition_detection: object = None
    trace_decode_token_ids: list | None = None
    extra_args: dict | None = None

    def clone(self):
        return copy.deepcopy(self)


@dataclass
class Request:
    prompt_token_ids: list | None
    sampling_params: Params | None
    mm_features: list | None = None
    prompt_embeds: object = None
    resumable: bool = False


tokens = st.lists(st.integers(0, 511), max_size=40)
prompts = st.lists(st.integers(0, 511), min_size=1, max_size=20)
STATEFUL = [
    {"presence_penalty": 0.1},
    {"frequency_penalty": 0.1},
    {"structured_outputs": object()},
    {"bad_words": ["no"]},
    {"repetition_detection": object()},
    {"trace_decode_token_ids": [1]},
]


@given(prompts, tokens, st.integers(1, 64), st.integers(0, 64))
def test_prompt_and_budget_add_up(prompt, so_far, max_tokens, min_tokens):
    """What is there plus what is asked for is what was asked for."""
    request = Request(prompt, Params(max_tokens=max_tokens, min_tokens=min_tokens))
    before = copy.deepcopy(request)
    rest = continued(request, so_far)
    assert request == before, "the original stays whole: it may have to be continued again"
    assert rest.prompt_token_ids == [*prompt, *so_far]
    assert rest.sampling_params.max_tokens + len(so_far) == max_tokens
    assert rest.sampling_params.min_tokens == max(0, min_tokens - len(so_far))
    assert mark_of(rest.sampling_params) is None
    assert spent(request, so_far) == (len(so_far) >= max_tokens)


@given(prompts, tokens.filter(bool), st.sampled_from([OUTPUTS, ALL]), st.sampled_from([None, {"mine": 1}]))
def test_an_exact_engine_gets_the_request_as_it_was_and_its_output(prompt, so_far, exact, extra):
    """Nothing is reduced: such an engine counts earlier tokens as output. The user's own extras stay."""
    params = Params(max_tokens=99, min_tokens=9, extra_args=extra, prompt_logprobs=1, bad_words=["no"])
    request = Request(prompt, params)
    before = copy.deepcopy(request)
    rest = continued(request, so_far, exact)
    assert request == before
    assert rest.prompt_token_ids == prompt
    mark = mark_of(rest.sampling_params)
    assert mark["tokens"] == so_far
    assert mark["steps"] == (len(so_far) if exact.hidden else 0)
    assert {k: v for k, v in rest.sampling_params.extra_args.items() if v is not mark} == (extra or {})
    assert replace(rest.sampling_params, extra_args=extra, prompt_logprobs=1) == params


@given(tokens.filter(bool), st.integers(0, 2**31 - 1), st.sampled_from([Exact(), OUTPUTS]))
def test_the_rest_of_a_seeded_request_has_a_seed_of_its_own(so_far, seed, exact):
    """Where draws cannot be skipped: reproducible, valid for vLLM, and not the seed whose first are spent."""
    request = Request([1], Params(max_tokens=100, seed=seed))
    first, second = (continued(request, so_far, exact).sampling_params.seed for _ in range(2))
    assert first == second
    assert 0 <= first < 2**31
    assert continued(request, [*so_far, 1], exact).sampling_params.seed != first
    assert drift(request, exact)
    assert continued(request, so_far, ALL).sampling_params.seed == seed
    assert drift(request, ALL) == ""


def test_only_a_sampled_answer_can_drift():
    """A seed without a temperature draws nothing; without a seed there is nothing to compare with."""
    assert drift(Request([1], Params(seed=3, temperature=0.0))) == ""
    assert drift(Request([1], Params())) == ""


def test_nothing_generated_means_the_same_request():
    """No copy, no new seed: an untouched request is sent as it was."""
    request = Request([1, 2], Params(seed=3))
    assert continued(request, []) is request
    assert continued(request, [], ALL) is request


def test_what_was_given_for_the_prompt_is_not_asked_again():
    """Log-probabilities of the prompt came with the first answer."""
    params = Params(prompt_logprobs=2, prompt_logprob_token_ids=[[1]])
    for exact in (Exact(), ALL):
        rest = continued(Request([1, 2], params), [5], exact).sampling_params
        assert rest.prompt_logprobs is None
        assert rest.prompt_logprob_token_ids is None


@pytest.mark.parametrize("exact", [Exact(), OUTPUTS, ALL])
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"sampling_params": None}, "pooling"),
        ({"prompt_token_ids": None}, "embeddings"),
        ({"prompt_embeds": object()}, "embeddings"),
        ({"mm_features": ["image"]}, "multi-modal"),
        ({"resumable": True}, "stream"),
    ],
)
def test_what_no_engine_can_continue_says_why(changes, said, exact):
    """Better afresh than subtly another distribution."""
    request = Request([1], Params())
    assert why_not(request, exact) == ""
    assert said in why_not(replace(request, **changes), exact)


@pytest.mark.parametrize("params", STATEFUL, ids=lambda p: next(iter(p)))
def test_what_depends_on_the_output_needs_an_exact_engine(params):
    """Any engine but one that knows output from prompt would give another distribution."""
    request, name = Request([1], Params(**params)), next(iter(params))
    assert name in why_not(request)
    assert why_not(request, ALL) == why_not(request, OUTPUTS) == ""


@pytest.mark.parametrize("exact", [Exact(), OUTPUTS, ALL])
def test_a_thinking_budget_is_never_continued(exact):
    """It is spent in a worker's own books: half of it would be given a second time."""
    assert "thinking_token_budget" in why_not(Request([1], Params(thinking_token_budget=5)), exact)
