"""A worker's part of ``exact``, for vLLM's first model runner: the request as if it had run here before."""

from __future__ import annotations

import inspect
import logging
from typing import TYPE_CHECKING, Protocol

import torch
from vllm.v1.sample.ops import topk_topp_sampler
from vllm.v1.worker.gpu_input_batch import CachedRequestState, InputBatch

from rayguard.engine.continuation import mark_of, seed_after
from rayguard.engine.vllm.exact.claims import HIDDEN, OUTPUTS, claim
from rayguard.engine.vllm.patch import says, takes, wrap

if TYPE_CHECKING:
    from collections.abc import Callable

    from rayguard.engine.vllm.interfaces import SamplingParams

    class _Batch(Protocol):
        device: torch.device
        vocab_size: int

    class _WorkersRequest(Protocol):
        sampling_params: SamplingParams | None
        generator: torch.Generator | None
        output_token_ids: list[int]


_log = logging.getLogger("rayguard")
_USED = {"sampling_params", "generator", "output_token_ids"}


def fits() -> bool:
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


def put_in() -> None:
    """Wrap what is called once for a worker, and once for a request that enters its batch."""
    wrap(InputBatch, "__init__", _made)
    wrap(InputBatch, "add_request", _with_earlier)


def _made(init: Callable[..., None], batch: _Batch, *args: object, **kwargs: object) -> None:
    """Claim here: only a process that runs a first model runner makes a batch."""
    init(batch, *args, **kwargs)
    claim(OUTPUTS)
    if _draws_as_known(batch.device.type):
        claim(HIDDEN)


def _draws_as_known(device: str) -> bool:
    if device == "cpu":
        sampler = topk_topp_sampler.TopKTopPSampler()
        one = "seeds[i] = torch.randint(0, 2**31, (1,), generator=gen, dtype=torch.long).item()"
        return sampler.forward.__name__ == "forward_cpu" and says(sampler.forward_cpu, one)
    one = "q[i].exponential_(generator=generator)"
    return device == "cuda" and says(topk_topp_sampler.random_sample, one)


def _with_earlier(
    add: Callable[[_Batch, _WorkersRequest], object], batch: _Batch, request: _WorkersRequest
) -> object:
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
