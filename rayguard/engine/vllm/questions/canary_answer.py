"""A canary's question on its way to a vLLM core, and the answer put together from what the core sends.

What is asked, and through which client, is ``canary_request``. Written against vLLM 0.32
(``EngineCoreOutput``, ``outputs_queue``).
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import time
from typing import TYPE_CHECKING

from rayguard.engine.weights.canary import LIKELY, Canary, Position

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from rayguard.engine.vllm.interfaces import (
        EngineCoreClient,
        EngineCoreOutputs,
        EngineCoreRequest,
        VllmConfig,
    )

_WHOLE = frozenset({"LENGTH", "STOP"})
_LOOK_S = 0.05  # at whether it is still wanted


def alternatives(config: VllmConfig) -> int:
    """Return how many of the likeliest tokens an engine with vLLM's ``config`` is asked to tell."""
    most = config.model_config.max_logprobs
    return LIKELY if most == -1 else min(LIKELY, most)


class CanaryQuestion:
    """One question on its way. For one thread, or one event loop."""

    def __init__(self, request: EngineCoreRequest, *, gives_way: bool = False) -> None:
        self.request = request
        self.gives_way = gives_way  # to callers, where they would wait for it
        self.id = request.request_id
        self.ended = asyncio.Event()  # waited for by loops alone
        self._positions: list[Position] = []
        self._bare = False
        self._reason = ""
        self._stop_reason = ""

    @property
    def numbers(self) -> bool:
        """Whether it asks for log-probabilities."""
        params = self.request.sampling_params
        return params is not None and params.logprobs is not None

    def take(self, outputs: EngineCoreOutputs) -> None:
        """Take what is for us out of what a core sent."""
        ours = [output for output in outputs.outputs if output.request_id == self.id]
        if not ours:
            return
        outputs.outputs = [output for output in outputs.outputs if output.request_id != self.id]
        for output in ours:
            rows = output.new_logprobs
            if rows is None:
                self._positions += [((token, 0.0),) for token in output.new_token_ids]
                self._bare = self._bare or bool(output.new_token_ids)
            else:
                self._positions += [
                    _position(token, rows.logprob_token_ids[n], rows.logprobs[n])
                    for n, token in enumerate(output.new_token_ids)
                ]
            if output.finish_reason is not None:
                self._reason, self._stop_reason = output.finish_reason.name, str(output.stop_reason or "")
                self.ended.set()

    def answer(self) -> Canary | None:
        """Return the answer; None where it was not waited for, or somebody aborted everything."""
        if self._reason in _WHOLE:
            return Canary(tuple(self._positions), bare=self._bare)
        return Canary(error=self._stop_reason or "it gives no reason") if self._reason == "ERROR" else None


def read(
    core: EngineCoreClient,
    question: CanaryQuestion,
    deadline_s: float,
    unwanted: Callable[[], bool] = lambda: False,
) -> None:
    """Let ``core`` answer, from which nobody else reads meanwhile; until it is ``unwanted``.

    Raises:
        TimeoutError: The deadline passed.
    """
    until = time.monotonic() + deadline_s
    core.add_request(question.request)
    while not question.ended.is_set():
        left_s = until - time.monotonic()
        if left_s <= 0 or unwanted():
            core.abort_requests([question.id])
            if left_s > 0:
                return
            raise TimeoutError(f"no answer within {deadline_s:.0f} s")
        with contextlib.suppress(queue.Empty):
            question.take(_next(core, min(left_s, _LOOK_S)))


def _next(core: EngineCoreClient, left_s: float) -> EngineCoreOutputs:
    if not hasattr(core, "outputs_queue"):
        return core.get_output()  # in this very process: one step
    outputs = core.outputs_queue.get(timeout=left_s)
    if isinstance(outputs, Exception):
        raise outputs
    return outputs


def _position(token: int, ids: Iterable[int], logprobs: Iterable[float]) -> Position:
    rows = list(zip(map(int, ids), map(float, logprobs), strict=True))  # what was sampled, then the likeliest
    others = [one for one in rows[1:] if one[0] != token]
    return ((int(token), rows[0][1]), *others[:LIKELY])
