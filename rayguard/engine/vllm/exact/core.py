"""The engine core's part of ``exact``: the request gets its output, its grammar the tokens."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import TYPE_CHECKING, Protocol

from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

from rayguard.engine.continuation import mark_of
from rayguard.engine.vllm.patch import says, takes, wrap

if TYPE_CHECKING:
    from collections.abc import Callable

    from rayguard.engine.vllm.interfaces import SamplingParams

    class _Structured(Protocol):
        grammar: object
        reasoning_ended: bool | None
        reasoner: object

    class _CoresRequest(Protocol):
        request_id: str
        sampling_params: SamplingParams | None
        prompt_token_ids: list[int]
        output_token_ids: list[int]
        structured_output_request: _Structured
        prefill_stats: object

        def append_output_token_ids(self, token_ids: list[int]) -> None: ...

    class _GrammarManager(Protocol):
        def accept_tokens(self, request: object, new_token_ids: list[int]) -> bool: ...


def fits() -> bool:
    """Say whether this vLLM makes, schedules and constrains requests as we know it."""
    return (
        takes(Request.from_engine_core_request, "request", "block_hasher")
        and takes(Request.append_output_token_ids, "self", "token_ids")
        and says(Request.__init__, "self.prefill_stats:", "self._output_token_ids: list[int] = []")
        and takes(StructuredOutputManager._create_grammar, "self", "request")  # noqa: SLF001
        and takes(StructuredOutputManager.accept_tokens, "self", "request", "new_token_ids")
        and says(
            Scheduler.schedule,
            "num_new_tokens = request.num_tokens - num_computed_tokens",  # output is computed again too
            "if request.prefill_stats and",
            "req._all_token_ids",
        )
    )


def put_in() -> None:
    """Wrap what is called once for a request, and once for its grammar."""
    wrap(Request, "from_engine_core_request", _with_output)
    wrap(StructuredOutputManager, "_create_grammar", _with_tokens_accepted)


def _with_output(make: Callable[..., _CoresRequest], *args: object, **kwargs: object) -> _CoresRequest:
    request = make(*args, **kwargs)
    if mark := mark_of(request.sampling_params):
        request.append_output_token_ids(list(mark["tokens"]))
        # Its prefill was counted in its first life; and vLLM asserts that a first prefill finds no more
        # than the prompt in the prefix cache, where another request may have left the same output.
        request.prefill_stats = None
    return request


def _with_tokens_accepted(
    create: Callable[..., object], manager: _GrammarManager, request: _CoresRequest
) -> object:
    grammar = create(manager, request)
    tokens = list(request.output_token_ids)
    if tokens and not accepted(manager, request, grammar, tokens):
        raise ValueError(f"the grammar refuses the tokens that request {request.request_id} has so far")
    return grammar


def accepted(manager: _GrammarManager, request: _CoresRequest, grammar: object, tokens: list[int]) -> bool:
    """Advance ``grammar`` over ``tokens`` one by one, as a core does: reasoning may end at any of them.

    On a stand-in: the request itself gets its grammar when the future that runs this is done.
    """
    structured = copy.copy(request.structured_output_request)
    structured.grammar = grammar
    so_far = list(request.prompt_token_ids)
    seen = SimpleNamespace(
        request_id=request.request_id,
        use_structured_output=True,
        structured_output_request=structured,
        prompt_token_ids=request.prompt_token_ids,
        all_token_ids=so_far,
    )
    for token in tokens:
        so_far.append(token)
        if not manager.accept_tokens(seen, [token]):
            return False
    request.structured_output_request.reasoning_ended = structured.reasoning_ended
    request.structured_output_request.reasoner = structured.reasoner
    return True
