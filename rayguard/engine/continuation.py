"""Going on where a dead engine stopped: the request that makes a new core produce the missing rest.

The frontend (in the owner's process) keeps what it received: tokens, text, log-probabilities, stop-string
state. The new core needs the tokens so far. One that runs ``rayguard.engine.vllm.exact`` takes them as
*output* and goes on as if nothing had happened; any other takes them as the end of a longer prompt, which is
the same only for parameters that do not ask which tokens are output. Works on vLLM's ``EngineCoreRequest`` by
attribute, without importing vLLM. What cannot be continued exactly says why.
"""

from __future__ import annotations

import copy
import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypedDict, cast

if TYPE_CHECKING:
    from rayguard.engine.vllm.interfaces import EngineCoreRequest, SamplingParams

MARK = "rayguard"  # in SamplingParams.extra_args: what ``vllm.exact`` reads in the core and in its workers

# Parameters whose effect depends on which tokens are output and which are prompt, or on a state in the core
# that grows with the output. Repetition penalty, logit bias, allowed tokens, temperature, top-p and the like
# count prompt and output alike (measured: identical).
_STATEFUL = (
    "structured_outputs",
    "presence_penalty",
    "frequency_penalty",
    "bad_words",
    "repetition_detection",
    "trace_decode_token_ids",
)
_NEVER = ("thinking_token_budget",)  # counted by what is new at each step, in a worker's own books
_GIVEN_BEFORE = ("prompt_logprobs", "prompt_logprob_token_ids")


@dataclass(frozen=True, slots=True, kw_only=True)
class Exact:
    """What an engine takes up as if it had never been interrupted; ``vllm.exact.claims.exactness`` finds out.

    Invariant: ``hidden`` only with ``outputs``.
    """

    outputs: bool = False  # earlier tokens count as output: penalties, bad words, grammars
    hidden: bool = False  # what grows unseen with each token: seeded generators


PLAIN = Exact()  # an engine as vLLM made it


class ContinuationMark(TypedDict):
    """What a continued request says to an exact engine."""

    tokens: list[int]  # so far
    steps: int  # draws to skip; 0: the engine cannot


def why_not(request: EngineCoreRequest, exact: Exact = PLAIN) -> str:
    """Return why ``request`` cannot be continued from its tokens so far, or an empty string."""
    params = request.sampling_params
    if params is None:
        return "a pooling request has no tokens"
    if request.prompt_token_ids is None or getattr(request, "prompt_embeds", None) is not None:
        return "its prompt is made of embeddings"
    if getattr(request, "mm_features", None):
        return "its prompt has multi-modal inputs"
    if getattr(request, "resumable", False):
        return "its input is a stream"
    for name in _NEVER if exact.outputs else (*_STATEFUL, *_NEVER):
        if getattr(params, name, None):
            return f"{name} depends on which tokens are output"
    return ""


def drift(request: EngineCoreRequest, exact: Exact = PLAIN) -> str:
    """Return how a continued ``request`` differs from an uninterrupted one, or an empty string.

    Both are samples of the same distribution: only the tokens are others.
    """
    params = _params(request)
    if not exact.hidden and params.seed is not None and params.temperature:
        return "its seed gives other tokens after the cut"
    return ""


def continued(request: EngineCoreRequest, tokens: list[int], exact: Exact = PLAIN) -> EngineCoreRequest:
    """Return a copy of ``request`` that goes on after ``tokens``; prompt log-probabilities were given.

    Without ``exact.hidden``, a seeded generator would start at its first draw again and repeat the
    randomness of the first tokens; so the rest gets a seed of its own: reproducible and a valid sample,
    but not the tokens of an uninterrupted run (``drift``).
    """
    if not tokens:
        return request
    rest = copy.copy(request)
    params = rest.sampling_params = _params(request).clone()
    for name in _GIVEN_BEFORE:
        if getattr(params, name, None) is not None:
            setattr(params, name, None)
    if params.seed is not None and not exact.hidden:
        params.seed = seed_after(params.seed, len(tokens))
    if exact.outputs:
        mark = ContinuationMark(tokens=list(tokens), steps=len(tokens) if exact.hidden else 0)
        params.extra_args = {**(params.extra_args or {}), MARK: mark}
        return rest
    if params.max_tokens is not None:
        params.max_tokens -= len(tokens)
    params.min_tokens = max(0, params.min_tokens - len(tokens))
    rest.prompt_token_ids = [*(request.prompt_token_ids or ()), *tokens]
    return rest


def spent(request: EngineCoreRequest, tokens: list[int]) -> bool:
    """Say whether nothing is left to generate: only the news of the end was lost."""
    limit = _params(request).max_tokens
    return limit is not None and len(tokens) >= limit


def mark_of(params: SamplingParams | None) -> ContinuationMark | None:
    """Return what ``continued`` has written into sampling parameters."""
    extra = getattr(params, "extra_args", None)
    mark = extra.get(MARK) if extra else None
    return cast("ContinuationMark", mark) if isinstance(mark, dict) and mark.get("tokens") else None


def _params(request: EngineCoreRequest) -> SamplingParams:
    assert request.sampling_params is not None, "why_not refuses those that are pooled"
    return request.sampling_params


def seed_after(seed: int, drawn: int) -> int:
    """Return a seed for what comes after ``drawn`` draws from ``seed``."""
    digest = hashlib.sha256(f"{seed}:{drawn}".encode()).digest()
    return int.from_bytes(digest[:4], "big") & 0x7FFFFFFF
