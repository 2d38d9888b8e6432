"""Asking a vLLM core for its canary: which request, and through which client it goes.

The request goes to the core beside vLLM's frontend: its books, its callers and its metrics see nothing of it.
What comes back is ``canary_answer``, what it means ``rayguard.engine.weights.canary``. Written against vLLM
0.32 (``EngineCoreRequest``).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from typing import TYPE_CHECKING

from rayguard.engine.vllm.async_client import AsyncHealingClient
from rayguard.engine.vllm.questions.canary_answer import CanaryQuestion, alternatives, read
from rayguard.engine.vllm.sync_client import SyncHealingClient
from rayguard.engine.weights.canary import PROMPT, TOKENS, Canary, of_ranks

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from rayguard.engine.vllm.client import HealingClient
    from rayguard.engine.vllm.interfaces import EngineCoreClient, LLMEngine, VllmConfig

_IN_TIME_S = 1.0  # for a loop to say that a deadline passed


def of_each_rank(
    core: EngineCoreClient, asked: Callable[[CanaryQuestion], Canary | None], *, logprobs: bool
) -> Canary | None:
    """Have each data-parallel rank of ``core`` asked; None where that is not for such an engine."""
    model = core.vllm_config.model_config
    fits = model.get_vocab_size() > max(PROMPT) and model.max_model_len >= len(PROMPT) + TOKENS
    if not fits or model.runner_type != "generate" or model.is_encoder_decoder:
        return None
    several = range(len(getattr(core, "core_engines", ())))[1:]
    ranks = (0, *several) if several else (None,)
    return of_ranks([asked(_question(core.vllm_config, rank, logprobs=logprobs)) for rank in ranks])


def _question(config: VllmConfig, rank: int | None, *, logprobs: bool) -> CanaryQuestion:
    from vllm import SamplingParams  # noqa: PLC0415 - vLLM only where it runs
    from vllm.v1.engine import EngineCoreRequest  # noqa: PLC0415

    options: dict[str, object] = {
        "temperature": 0.0,
        "max_tokens": TOKENS,
        "ignore_eos": True,
        "detokenize": False,
        "skip_reading_prefix_cache": True,
    }
    if logprobs:
        options["logprobs"] = alternatives(config)
    request = EngineCoreRequest(
        request_id=f"rayguard-canary-{uuid.uuid4().hex}",
        prompt_token_ids=list(PROMPT),
        mm_features=None,
        sampling_params=SamplingParams(**options),
        pooling_params=None,
        arrival_time=time.time(),
        lora_request=None,
        cache_salt=None,
        data_parallel_rank=rank,
    )
    return CanaryQuestion(request)


def ask(
    core: EngineCoreClient,
    front: LLMEngine,
    client: HealingClient | None,
    question: CanaryQuestion,
    deadline_s: float,
    run: Callable[[Coroutine[object, object, None], float], None] | None,
) -> Canary | None:
    """Ask ``core`` and return its answer; None where it had no time for it.

    ``client`` is None where nobody reads from that core yet. ``run`` runs a coroutine on the loop of an
    ``AsyncLLM`` for so many seconds; None under an ``LLM``.

    Raises:
        TimeoutError: The deadline passed.
    """
    if client is not None and question.numbers and client.meetings.by_token():
        return None  # it would be told others' (``known_wrong``)
    if run is not None:
        run(ask_on_loop(core, front, client, question, deadline_s), deadline_s + _IN_TIME_S)
    elif isinstance(client, SyncHealingClient):
        client.ask(question, deadline_s)
    else:
        read(core, question, deadline_s)
    return question.answer()


async def ask_on_loop(
    core: EngineCoreClient,
    front: LLMEngine,
    client: HealingClient | None,
    question: CanaryQuestion,
    deadline_s: float,
) -> None:
    """Ask ``core``, from which an event loop reads: that of ``front``, where there is a ``client``.

    Raises:
        TimeoutError: The deadline passed.
    """
    if not isinstance(client, AsyncHealingClient):
        await asyncio.wait_for(_read_on_loop(core, question), deadline_s)
        return
    front._run_output_handler()  # noqa: SLF001 - else nobody reads before the first request
    await client.ask(question, deadline_s, room=core.vllm_config.scheduler_config.max_num_seqs)


async def _read_on_loop(core: EngineCoreClient, question: CanaryQuestion) -> None:
    await core.add_request_async(question.request)
    try:
        while not question.ended.is_set():
            question.take(await core.get_output_async())
    finally:
        if not question.ended.is_set():
            with contextlib.suppress(Exception):  # a dead core has nothing left to abort
                await core.abort_requests_async([question.id])
