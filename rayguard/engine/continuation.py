"""Going on where a dead engine stopped: the request that makes a new core produce the missing rest.

The frontend (in the owner's process) keeps what it received: tokens, text, log-probabilities, stop-string
state. So the new core only needs ``prompt + tokens so far`` with the budget reduced. Works on vLLM's
``EngineCoreRequest`` by attribute, without importing vLLM. What cannot be continued exactly says why.
"""

from __future__ import annotations

import copy
import hashlib
from typing import Any

# Parameters whose effect depends on which tokens are output and which are prompt, or on a hidden state in
# the core that starts anew: continuing would give another distribution. Repetition penalty, logit bias,
# allowed tokens, temperature, top-p and the like count prompt and output alike (measured: identical).
_STATEFUL = (
    "structured_outputs",
    "presence_penalty",
    "frequency_penalty",
    "bad_words",
    "thinking_token_budget",
)


def why_not(request: Any) -> str:
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
    for name in _STATEFUL:
        if getattr(params, name, None):
            return f"{name} depends on which tokens are output"
    return ""


def continued(request: Any, tokens: list[int]) -> Any:
    """Return a copy of ``request`` that goes on after ``tokens``.

    ``max_tokens`` and ``min_tokens`` shrink by what is there. Prompt log-probabilities were given before
    the cut. A seeded generator would start at its first draw again and repeat the randomness of the first
    tokens, so the rest gets a seed of its own, derived from the old one and the place of the cut:
    reproducible, and a valid sample, but not the tokens of an uninterrupted run.
    """
    if not tokens:
        return request
    rest = copy.copy(request)
    params = request.sampling_params.clone()
    if params.max_tokens is not None:
        params.max_tokens -= len(tokens)
    params.min_tokens = max(0, params.min_tokens - len(tokens))
    params.prompt_logprobs = None
    if params.seed is not None:
        params.seed = _seed_after(params.seed, len(tokens))
    rest.sampling_params = params
    rest.prompt_token_ids = [*request.prompt_token_ids, *tokens]
    return rest


def spent(request: Any, tokens: list[int]) -> bool:
    """Say whether nothing is left to generate: only the news of the end was lost."""
    limit = request.sampling_params.max_tokens
    return limit is not None and len(tokens) >= limit


def _seed_after(seed: int, drawn: int) -> int:
    digest = hashlib.sha256(f"{seed}:{drawn}".encode()).digest()
    return int.from_bytes(digest[:4], "big") & 0x7FFFFFFF
