"""Which requests of a vLLM frontend are audited, and the question by which one is asked again.

What an audit is and what follows is ``rayguard.engine.audit``. Written against vLLM 0.32
(``EngineCoreRequest``, ``SamplingParams``).
"""

from __future__ import annotations

import copy
import time
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from rayguard.engine.audited_answer import AuditedAnswer, Auditor
from rayguard.engine.vllm.questions.canary_answer import CanaryQuestion, alternatives

if TYPE_CHECKING:
    from rayguard.engine.vllm.client import HealingClient
    from rayguard.engine.vllm.interfaces import EngineCoreOutput, EngineCoreRequest, VllmConfig

_GREEDY = 1e-5  # vLLM takes a lower temperature for 0 (vllm/sampling_params.py)
_WHOLE = frozenset({"LENGTH", "STOP"})


@dataclass(frozen=True, slots=True)
class _Chosen:
    at: float  # monotonic
    state: object  # of engine and weights as it came


class AuditedRequests:
    """The requests of one frontend that the audit has chosen. On the frontend's thread."""

    def __init__(self, auditor: Auditor, client: HealingClient) -> None:
        self._auditor, self._client = auditor, client
        self._chosen: dict[str, _Chosen] = {}

    def began(self, request: EngineCoreRequest) -> None:
        """A request has come in."""
        self._chosen.pop(request.request_id, None)
        if self._auditor.chooses(greedy=_may_be_asked_again(request)):
            self._chosen[request.request_id] = _Chosen(time.monotonic(), self._state())

    def answered(self, request: EngineCoreRequest, output: EngineCoreOutput) -> None:
        """A request got its last output, which the frontend has yet to see."""
        chosen = self._chosen.pop(request.request_id, None)
        if chosen is None or chosen.state != self._state():
            return
        held = self._client.processor.request_states.get(request.request_id)
        reason = getattr(output.finish_reason, "name", "")
        if held is None or held.detokenizer is None or reason not in _WHOLE:
            return
        tokens = (*held.detokenizer.output_token_ids, *output.new_token_ids)
        if tokens:
            took_s = time.monotonic() - chosen.at
            name = request.external_req_id or request.request_id
            self._auditor.take(
                AuditedAnswer(name, request, tokens, took_s, lambda: chosen.state != self._state())
            )

    def aborted(self, request_id: str) -> None:
        """Nobody waits for a request any more."""
        self._chosen.pop(request_id, None)

    def _state(self) -> object:
        """Return what must be as it was: the core, its weights, and what its owner did with it."""
        client = self._client
        return client.core, client.own_calls.touches, client.kept


def _may_be_asked_again(request: EngineCoreRequest) -> bool:
    """Whether it is greedy and all of it stands in the request itself."""
    params = request.sampling_params
    return (
        params is not None
        and params.temperature < _GREEDY
        and request.prompt_token_ids is not None
        and getattr(request, "prompt_embeds", None) is None
        and not getattr(request, "mm_features", None)  # which the core may hold without their data
        and not getattr(request, "resumable", False)
    )


def question_for(config: VllmConfig, answer: AuditedAnswer, *, logprobs: bool) -> CanaryQuestion:
    """Return the question by which the request of ``answer`` is asked again, past the prefix cache."""
    request = copy.copy(cast("EngineCoreRequest", answer.request))
    assert request.sampling_params is not None, "only greedy requests are audited"
    asked: dict[str, object] = {
        "max_tokens": len(answer.tokens),
        "logprobs": alternatives(config) if logprobs else None,
        "prompt_logprobs": None,
        "logprob_token_ids": None,  # which would spoil those of others
        "skip_reading_prefix_cache": True,
    }
    params = request.sampling_params = request.sampling_params.clone()
    for name, value in asked.items():
        setattr(params, name, value)
    request.request_id = f"rayguard-audit-{uuid.uuid4().hex}"
    return CanaryQuestion(request, gives_way=True)
