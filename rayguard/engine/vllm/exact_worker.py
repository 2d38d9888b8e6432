"""A worker's part of ``exact``, for vLLM's first model runner: the request as if it had run here before."""

from __future__ import annotations

import inspect
import logging
from typing import TYPE_CHECKING, Any

import torch
from vllm.v1.sample.ops import topk_topp_sampler
from vllm.v1.sample.thinking_budget_state import ThinkingBudgetStateHolder
from vllm.v1.worker.gpu_input_batch import CachedRequestState, InputBatch

from rayguard.engine.continuation import mark_of, seed_after
from rayguard.engine.vllm.exact import HIDDEN, OUTPUTS
from rayguard.engine.vllm.patching import says, takes, wrap

if TYPE_CHECKING:
    from collections.abc import Callable

_log = logging.getLogger("rayguard")
_USED = {"sampling_params", "generator", "output_token_ids"}


class WorkerPart:
    """Looks and puts in; ``claim`` shows to the owner what this worker can do."""

    def __init__(self, claim: Callable[[str], None]) -> None:
        self._claim = claim

    def fits(self) -> bool:
        """Say whether a request with output is taken into a batch as we know it (as after a preemption)."""
        return (
            takes(InputBatch.add_request, "self", "request")
            and set(inspect.signature(CachedRequestState).parameters) >= _USED
            and says(
                InputBatch.add_request,
                "self._register_add_request(request)",
                "self.token_ids_cpu[req_index, start_idx:end_idx] = request.output_token_ids",
            )
        )

    def put_in(self) -> None:
        """Wrap what is called once for a worker, and once for a request that enters its batch."""
        wrap(InputBatch, "__init__", self._made)
        wrap(InputBatch, "add_request", _with_earlier)
        if _thinks_as_known():
            wrap(ThinkingBudgetStateHolder, "sync_batch", _with_budget_spent)

    def _made(self, init: Callable[..., Any], batch: Any, *args: Any, **kwargs: Any) -> None:
        """Claim here: only a process that runs a first model runner makes a batch."""
        init(batch, *args, **kwargs)
        self._claim(OUTPUTS)
        if _draws_as_known(batch.device.type) and _thinks_as_known():
            self._claim(HIDDEN)


def _draws_as_known(device: str) -> bool:
    if device == "cpu":
        sampler = topk_topp_sampler.TopKTopPSampler()
        one = "seeds[i] = torch.randint(0, 2**31, (1,), generator=gen, dtype=torch.long).item()"
        return sampler.forward.__name__ == "forward_cpu" and says(sampler.forward_cpu, one)
    one = "q[i].exponential_(generator=generator)"
    return device == "cuda" and says(topk_topp_sampler.random_sample, one)


def _thinks_as_known() -> bool:
    return takes(ThinkingBudgetStateHolder.sync_batch, "self", "batch_update") and says(
        ThinkingBudgetStateHolder.update_state,
        'state["in_spec_mode"] = self.in_spec_mode state["force_index"] = [] self._update_think_state(state)',
    )


def _with_earlier(add: Callable[..., Any], batch: Any, request: Any) -> Any:
    mark = mark_of(request.sampling_params)
    if mark and not request.output_token_ids:  # else it comes back from a preemption here
        if request.generator is not None and mark["steps"]:
            draw(request.generator, mark["steps"], batch.vocab_size)
        request.output_token_ids.extend(mark["tokens"])
    return add(batch, request)


def draw(generator: torch.Generator, count: int, vocabulary: int) -> None:
    """Bring a fresh generator to where ``count`` sampled tokens leave it.

    On the CPU vLLM draws one integer for a token. On CUDA it draws a row of noise, and the generator counts:
    one row shows by how much (not verified on a GPU).
    """
    try:
        if generator.device.type == "cpu":
            torch.randint(0, 2**31, (count,), generator=generator, dtype=torch.long)
            return
        start = generator.get_offset()
        torch.empty(vocabulary, device=generator.device).exponential_(generator=generator)
        generator.set_offset(start + count * (generator.get_offset() - start))
    except Exception:  # noqa: BLE001 - a worker that raises takes its engine down: better other tokens
        _log.exception("rayguard cannot advance a seeded generator")
        generator.manual_seed(seed_after(generator.initial_seed(), count))


def _with_budget_spent(sync: Callable[..., Any], holder: Any, batch_update: Any) -> None:
    sync(holder, batch_update)
    for index, params, _prompt, output in batch_update.added if batch_update else ():
        mark, state = mark_of(params), holder._state.get(index)  # noqa: SLF001
        if mark and state is not None and len(output) == mark["steps"]:
            replay(holder, state, output)


def replay(holder: Any, state: dict[str, Any], output: list[int]) -> None:
    """Show ``holder`` the output token by token, as it came: it counts by what is new at each step.

    At each step it searches all output again for its markers. Here only the end can be news, which makes
    10 000 tokens a matter of milliseconds and not of seconds.
    """
    so_far: list[int] = []
    state["output_tok_ids"], state["in_spec_mode"] = so_far, False
    holder._find_last_sequence_index = _at_the_end  # noqa: SLF001
    try:
        for token in output:
            state["force_index"] = []
            holder._update_think_state(state)  # noqa: SLF001
            so_far.append(token)
    finally:
        del holder._find_last_sequence_index  # noqa: SLF001
        state["output_tok_ids"] = output


def _at_the_end(tokens: list[int], marker: list[int]) -> int:
    start = len(tokens) - len(marker)
    return start if marker and start >= 0 and tokens[start:] == marker else -1
