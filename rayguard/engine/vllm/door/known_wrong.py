"""What is known to make the installed vLLM answer wrongly without a word, by version.

Each entry was read in that version's source, or tried, and has the thread where it is discussed. An engine or
a request that matches is refused with what to write instead; whoever wants it all the same names it in
``RAYGUARD_ALLOW``. Nothing is refused in a version that is not named here. Pure: values in, values out. Which
requests meet in an engine is known to ``meetings``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from rayguard.engine.vllm.interfaces import EngineCoreRequest

    Stamp = Callable[[Any], Hashable]  # of an adapter: when the files that the engine has of it were written
    Claim = tuple[Hashable, Hashable]

_THREADS = "https://github.com/vllm-project/vllm/"
_INT32 = 1 << 31
_PENALTY = "repetition_penalty"
BY_TOKEN = (
    "logprob_token_ids",
    "logprobs",
    "by token",
)  # entry, key and value of those that spoil the others


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineTraits:
    """What of an engine decides whether an entry holds for it. ``version``: of vLLM, "0.32"."""

    version: str = ""
    torch: str = ""
    v2_runner: bool = False
    prefix_caching: bool = False
    max_num_seqs: int = 2
    attention: frozenset[str] = frozenset()
    layer_elements: int = 0  # numbers in the KV cache of one layer


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownWrong:
    """One way to get wrong answers; ``name`` is what ``RAYGUARD_ALLOW`` knows it by."""

    name: str
    versions: frozenset[str]
    thread: str
    instead: str

    def sentence(self, what: str, version: str) -> str:
        """Say ``what`` is refused, why, and what to do."""
        return (
            f"{what}; vLLM {version} answers all the same, and wrongly ({_THREADS}{self.thread}). "
            f"{self.instead}. To have it all the same: RAYGUARD_ALLOW={self.name}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class WrongAlone(KnownWrong):
    """A request that is answered wrongly, or spoils others; ``found`` says what of it, else an empty text."""

    found: Callable[[EngineCoreRequest, EngineTraits], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class WrongTogether(KnownWrong):
    """Requests of which one spoils the other: those that claim other values for the same key.

    ``cached``: they meet through the prefix cache, also where one has ended; else only while both are inside.
    """

    claim: Callable[[EngineCoreRequest, EngineTraits, Stamp], Claim | None]
    what: str
    cached: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class WrongSettings(KnownWrong):
    """An engine all of whose answers may be wrong; ``found`` says why, else an empty text."""

    found: Callable[[EngineTraits], str]


def _kind_of_logprobs(request: EngineCoreRequest, engine: EngineTraits, _: Stamp) -> Claim | None:
    """V1's sampler tells a batch with ``logprob_token_ids`` in it of those and of the token sampled alone."""
    params = request.sampling_params
    if params is None or engine.v2_runner or engine.max_num_seqs == 1:
        return None
    if getattr(params, "logprob_token_ids", None):
        return BY_TOKEN[1:]
    return (BY_TOKEN[1], "the likeliest") if params.logprobs else None  # 0: of the token sampled alone


def _no_token_left(request: EngineCoreRequest, _: EngineTraits) -> str:
    """All logits are -inf, of which the sampler takes one that is not allowed."""
    params: Any = request.sampling_params
    allowed = set(getattr(params, "allowed_token_ids", None) or ())
    if not allowed:
        return ""
    banned = {ids[0] for ids in getattr(params, "bad_words_token_ids", None) or () if len(ids) == 1}
    banned |= {token for token, bias in (params.logit_bias or {}).items() if bias == -math.inf}
    by = [name for name in ("bad_words", "logit_bias") if getattr(params, name, None)]
    if params.min_tokens and params.structured_outputs is None:
        banned |= params.all_stop_token_ids
        by.append("min_tokens (which forbids stop tokens)")
    return "" if allowed - banned else f"no token is left: allowed_token_ids without those of {', '.join(by)}"


def _adapter_files(request: EngineCoreRequest, engine: EngineTraits, stamp: Stamp) -> Claim | None:
    """The prefix cache knows an adapter by name and path, not by what is in its files."""
    adapter: Any = request.lora_request
    params = request.sampling_params
    if adapter is None or not engine.prefix_caching or getattr(params, "skip_reading_prefix_cache", False):
        return None
    written = stamp(adapter)
    return None if written is None else ((adapter.lora_name, adapter.lora_path), written)


def _embedding_rows(request: EngineCoreRequest, engine: EngineTraits) -> str:
    """The prefix cache's key does not say which positions are tokens, and has 0 for those that are not."""
    embeds: Any = getattr(request, "prompt_embeds", None)
    mask = getattr(request, "prompt_is_token_ids", None)
    if embeds is None or mask is None or not engine.prefix_caching:
        return ""
    tokens = request.prompt_token_ids or ()
    rows = [n for n, (token, real) in enumerate(zip(tokens, mask, strict=False)) if real and not token]
    if not rows or not embeds[rows].any():
        return ""
    return f"prompt_embeds has rows beside zero where the prompt has the token 0 (position {rows[0]} is one)"


def _penalised_embeddings(request: EngineCoreRequest, engine: EngineTraits) -> str:
    """V1's batch keeps the tokens of whoever had the row before, where a prompt brings none."""
    embeds, penalty = getattr(request, "prompt_embeds", None), getattr(request.sampling_params, _PENALTY, 1.0)
    if embeds is None or request.prompt_token_ids or penalty == 1.0 or engine.v2_runner:
        return ""
    return f"{_PENALTY}={penalty} counts the tokens of the prompt, of which prompt_embeds has none"


def _flex_attention(engine: EngineTraits) -> str:
    """The kernel that torch 2.13 generates counts the elements of a layer's cache in 32 bits."""
    if "FLEX_ATTENTION" not in engine.attention or engine.layer_elements < _INT32 or engine.torch != "2.13":
        return ""
    return (
        "FlexAttention in torch 2.13 reads the wrong place in a KV cache of 2**31 elements a layer or more; "
        f"this one has {engine.layer_elements:,}"
    )


NOW = frozenset({"0.32"})
REQUESTS: tuple[WrongAlone | WrongTogether, ...] = (
    WrongTogether(
        name=BY_TOKEN[0],
        versions=NOW,
        thread="pull/51789",
        what="logprob_token_ids and logprobs must not meet in one batch: in place of the likeliest tokens, "
        "token 0 would be told with -inf",
        claim=_kind_of_logprobs,
        cached=False,
        instead="Ask one kind after the other; logprobs=0 (of the token sampled alone) may run beside both",
    ),
    WrongAlone(
        name="no_token_left",
        versions=NOW,
        thread="issues/57986",
        found=_no_token_left,
        instead="Allow a token that nothing else forbids",
    ),
    WrongTogether(
        name="adapter_files",
        versions=NOW,
        thread="issues/42125",
        what="an adapter was loaded again from files that have changed, under the name and path of before: "
        "the prefix cache still holds what the old one made",
        claim=_adapter_files,
        cached=True,
        instead="Give each version a name of its own (LoRARequest(f'policy-{step}', step, path)), or call "
        "reset_prefix_cache() after loading it",
    ),
    WrongAlone(
        name="embedding_rows",
        versions=NOW,
        thread="issues/56655",
        found=_embedding_rows,
        instead="Leave zeros in prompt_embeds where prompt_is_token_ids is True",
    ),
    WrongAlone(
        name="penalised_embeddings",
        versions=NOW,
        thread="issues/57719",
        found=_penalised_embeddings,
        instead="Take presence_penalty or frequency_penalty, which count what is generated alone",
    ),
)
SETTINGS: tuple[WrongSettings, ...] = (
    WrongSettings(
        name="flex_attention",
        versions=NOW,
        thread="issues/50427",
        found=_flex_attention,
        instead="Give it less memory (kv_cache_memory_bytes), or take another attention backend",
    ),
)
