"""Pushing weights through a core's client to the receivers in its workers, and what they say to hold.

Whether the receipts are right is ``rayguard.engine.weights.version``; the other end is ``receiver``.
"""

from __future__ import annotations

import contextlib
import inspect
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import TYPE_CHECKING, Any

from rayguard.engine.vllm.receiver import ASK, LOAD
from rayguard.engine.weights.version import WeightReceipt, Weights
from rayguard.errors import RecoveryTimeoutError, WeightsError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from rayguard.engine.vllm.interfaces import EngineCoreClient
    from rayguard.engine.weights.layout import Layout

    Answers = Sequence[Mapping[str, object]]

_NOT_LOADED = "were not loaded by worker"  # of what ``receiver`` says


def push(core: EngineCoreClient, weights: Weights) -> Answers:
    """Load ``weights`` into the workers; what is cached was computed with others."""
    answers = core.collective_rpc(LOAD, None, _sent(weights), None)
    core.reset_prefix_cache()
    core.set_weight_version(weights.version)
    return answers


async def push_async(core: EngineCoreClient, weights: Weights) -> Answers:
    """Do the same on the loop that the core's client belongs to, while its requests wait.

    They go on waiting where the workers may be half loaded.
    """
    await core.pause_scheduler_async(mode="keep", clear_cache=False)
    try:
        answers = await _everywhere(core, LOAD, *_sent(weights))
    except Exception:
        if all(held["version"] for held in await asked_async(core)):
            await core.resume_scheduler_async()
        raise
    await core.reset_prefix_cache_async(reset_running_requests=True)
    await core.set_weight_version_async(weights.version)
    await core.resume_scheduler_async()
    return answers


async def asked_async(core: EngineCoreClient) -> list[Mapping[str, object]]:
    """Return what the workers say to hold."""
    return await _everywhere(core, ASK)


async def _everywhere(core: EngineCoreClient, method: str, *arguments: object) -> list[Mapping[str, object]]:
    """Call a method of the workers of all data-parallel ranks.

    vLLM's own call hands on the answers of the first rank alone.
    """
    per_rank = await core.call_utility_all_async("collective_rpc", method, None, arguments, None)
    return [answer for workers in per_rank for answer in workers]


def receipts(answers: Answers) -> list[WeightReceipt]:
    """Return the workers' answers as values."""
    return [
        WeightReceipt(
            version=str(one["version"]),
            digest=str(one["digest"]),
            tensors=int(str(one["tensors"])),
            layout=_layout(one.get("layout")),
        )
        for one in answers
    ]


def _layout(said: object) -> Layout:
    """Return what a worker says of the tensors that it was sent; vLLM's encoding makes lists of tuples."""
    entries = said.items() if isinstance(said, dict) else ()
    return {str(name): (str(dtype), tuple(map(int, shape))) for name, (dtype, shape) in entries}


@contextlib.contextmanager
def told(weights: Weights, deadline_s: float) -> Iterator[None]:
    """Give what may go wrong in a push the type that says what it is."""
    try:
        yield
    except (TimeoutError, FutureTimeoutError) as late:  # two types before Python 3.11
        raise RecoveryTimeoutError(
            f"pushing weights {weights.version!r} took over {deadline_s:.0f} s"
        ) from late
    except Exception as error:
        text = str(error)  # vLLM sends no more of what a worker raised
        if _NOT_LOADED not in text:
            raise
        raise WeightsError(text[max(0, text.rfind("weights ", 0, text.index(_NOT_LOADED))) :]) from error


async def replayed(push: Callable[[Any], object], frontend: object) -> object:
    """Let the user's own ``push`` put weights into an ``AsyncLLM``, on its loop."""
    result = push(frontend)
    return await result if inspect.isawaitable(result) else result


def _sent(weights: Weights) -> tuple[object, ...]:
    return weights.payload, weights.path, weights.version, weights.digest
