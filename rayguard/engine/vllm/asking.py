"""Asking a vLLM core for its canary: the request, and the answer put together from what the core sends.

The request goes to the core beside vLLM's frontend: its books, its callers and its metrics see nothing of it.
What the answer means is ``rayguard.engine.weights.canary``. Written against vLLM 0.32 (``EngineCoreRequest``,
``EngineCoreOutput``, ``outputs_queue``).
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import time
import uuid
from functools import partial
from typing import TYPE_CHECKING, Any

from rayguard.engine.weights.canary import LIKELY, PROMPT, TOKENS, Canary

if TYPE_CHECKING:
    from rayguard.engine.vllm.engine import Frontend
    from rayguard.engine.weights.canary import Position

_WHOLE = frozenset({"LENGTH", "STOP"})


class Asked:
    """One question on its way. For one thread, or one event loop."""

    def __init__(self, request: Any) -> None:
        self.request = request
        self.id: str = request.request_id
        self.ended = asyncio.Event()  # waited for by loops alone
        self._positions: list[Position] = []
        self._reason = ""
        self._said = ""

    def take(self, outputs: Any) -> None:
        """Take what is for us out of what a core sent."""
        ours = [output for output in outputs.outputs if output.request_id == self.id]
        if not ours:
            return
        outputs.outputs = [output for output in outputs.outputs if output.request_id != self.id]
        for output in ours:
            rows = output.new_logprobs
            self._positions += [
                _position(token, rows.logprob_token_ids[n], rows.logprobs[n])
                for n, token in enumerate(output.new_token_ids)
            ]
            if output.finish_reason is not None:
                self._reason, self._said = output.finish_reason.name, str(output.stop_reason or "")
                self.ended.set()

    def answer(self) -> Canary | None:
        """Return the answer; None where it was not waited for, or somebody aborted everything."""
        if self._reason in _WHOLE:
            return Canary(tuple(self._positions))
        return Canary(error=self._said or "it gives no reason") if self._reason == "ERROR" else None


def asked(config: Any) -> Asked | None:
    """Return the question for an engine with vLLM's ``config``; None where it is not for such an engine."""
    from vllm import SamplingParams  # noqa: PLC0415 - vLLM only where it runs
    from vllm.v1.engine import EngineCoreRequest  # noqa: PLC0415

    model = config.model_config
    fits = model.get_vocab_size() > max(PROMPT) and model.max_model_len >= len(PROMPT) + TOKENS
    generates = model.runner_type == "generate" and not model.is_encoder_decoder
    if not fits or not generates or config.parallel_config.data_parallel_size > 1:
        return None
    options = {
        "temperature": 0.0,
        "max_tokens": TOKENS,
        "ignore_eos": True,
        "detokenize": False,
        "logprobs": LIKELY if model.max_logprobs == -1 else min(LIKELY, model.max_logprobs),
        "skip_reading_prefix_cache": True,
    }
    request = EngineCoreRequest(
        request_id=f"rayguard-canary-{uuid.uuid4().hex}",
        prompt_token_ids=list(PROMPT),
        mm_features=None,
        sampling_params=SamplingParams(**options),
        pooling_params=None,
        arrival_time=time.time(),
        lora_request=None,
        cache_salt=None,
        data_parallel_rank=None,
    )
    return Asked(request)


def here(core: Any, frontend: Frontend | None, question: Asked, deadline_s: float) -> None:
    """Ask ``core``, which serves ``frontend``, or nobody yet.

    Raises:
        TimeoutError: The deadline passed.
    """
    client: Any = None if frontend is None else frontend.client
    ask = partial(read, core) if client is None else client.ask
    ask(question, deadline_s)


async def on_loop(core: Any, frontend: Frontend | None, question: Asked, deadline_s: float) -> None:
    """Do the same for a core that an event loop reads from."""
    if frontend is None:
        await asyncio.wait_for(_read_on_loop(core, question), deadline_s)
        return
    frontend.engine._run_output_handler()  # noqa: SLF001 - else nobody reads before the first request
    client: Any = frontend.client
    await client.ask(question, deadline_s, room=core.vllm_config.scheduler_config.max_num_seqs)


def read(core: Any, question: Asked, deadline_s: float) -> None:
    """Let ``core`` answer, from which nobody else reads meanwhile.

    Raises:
        TimeoutError: The deadline passed.
    """
    until = time.monotonic() + deadline_s
    core.add_request(question.request)
    while not question.ended.is_set():
        left_s = until - time.monotonic()
        if left_s <= 0:
            core.abort_requests([question.id])
            raise TimeoutError(f"no canary within {deadline_s:.0f} s")
        with contextlib.suppress(queue.Empty):
            question.take(_next(core, left_s))


async def _read_on_loop(core: Any, question: Asked) -> None:
    await core.add_request_async(question.request)
    try:
        while not question.ended.is_set():
            question.take(await core.get_output_async())
    finally:
        if not question.ended.is_set():
            with contextlib.suppress(Exception):  # a dead core has nothing left to abort
                await core.abort_requests_async([question.id])


def _next(core: Any, left_s: float) -> Any:
    waiting = getattr(core, "outputs_queue", None)
    if waiting is None:
        return core.get_output()  # in this very process: one step
    outputs = waiting.get(timeout=left_s)
    if isinstance(outputs, Exception):
        raise outputs
    return outputs


def _position(token: int, ids: Any, logprobs: Any) -> Position:
    told = list(zip(map(int, ids), map(float, logprobs), strict=True))  # what was sampled, then the likeliest
    others = [one for one in told[1:] if one[0] != token]
    return ((int(token), told[0][1]), *others[:LIKELY])
