"""What a new core is asked for: exactly the missing rest."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayguard.engine.continuation import continued, spent, why_not


@dataclass
class Params:
    """The fields of vLLM's SamplingParams that matter here."""

    max_tokens: int | None = 16
    min_tokens: int = 0
    seed: int | None = None
    prompt_logprobs: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    structured_outputs: object = None
    bad_words: list = field(default_factory=list)

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


@given(st.lists(st.integers(0, 511), min_size=1, max_size=20), tokens, st.integers(1, 64), st.integers(0, 64))
def test_prompt_and_budget_add_up(prompt, so_far, max_tokens, min_tokens):
    """What is there plus what is asked for is what was asked for."""
    request = Request(prompt, Params(max_tokens=max_tokens, min_tokens=min_tokens))
    before = copy.deepcopy(request)
    rest = continued(request, so_far)
    assert request == before, "the original stays whole: it may have to be continued again"
    assert rest.prompt_token_ids == [*prompt, *so_far]
    assert rest.sampling_params.max_tokens + len(so_far) == max_tokens
    assert rest.sampling_params.min_tokens == max(0, min_tokens - len(so_far))
    assert spent(request, so_far) == (len(so_far) >= max_tokens)


@given(tokens.filter(bool), st.integers(0, 2**31 - 1))
def test_the_rest_of_a_seeded_request_has_a_seed_of_its_own(so_far, seed):
    """Reproducible, valid for vLLM, and not the seed whose first draws are spent."""
    request = Request([1], Params(max_tokens=100, seed=seed))
    first, second = (continued(request, so_far).sampling_params.seed for _ in range(2))
    assert first == second
    assert 0 <= first < 2**31
    assert continued(request, [*so_far, 1]).sampling_params.seed != first


def test_nothing_generated_means_the_same_request():
    """No copy, no new seed: an untouched request is sent as it was."""
    request = Request([1, 2], Params(seed=3))
    assert continued(request, []) is request


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"sampling_params": None}, "pooling"),
        ({"prompt_token_ids": None}, "embeddings"),
        ({"mm_features": ["image"]}, "multi-modal"),
        ({"resumable": True}, "stream"),
        ({"sampling_params": Params(presence_penalty=0.1)}, "presence_penalty"),
        ({"sampling_params": Params(frequency_penalty=0.1)}, "frequency_penalty"),
        ({"sampling_params": Params(structured_outputs=object())}, "structured_outputs"),
        ({"sampling_params": Params(bad_words=["no"])}, "bad_words"),
    ],
)
def test_what_cannot_be_continued_exactly_says_why(changes, said):
    """Better afresh than subtly another distribution."""
    request = Request([1], Params())
    assert why_not(request) == ""
    assert said in why_not(replace(request, **changes))
