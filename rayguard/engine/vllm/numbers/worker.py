"""A worker's part: whose logits are no numbers to sample from, counted where vLLM counts NaN itself.

vLLM samples token 0 from a row that holds NaN, and says nothing. It can count NaN by request (0.32:
``VLLM_COMPUTE_NANS_IN_LOGITS``, off by default): the counts lie on the device, come in the copy of the
sampled tokens that is waited for anyway, and go through the scheduler to the frontend with each output. That
way is taken. Only what is counted is ours: one reduction of the logits, for NaN and +inf, in the place of
vLLM's passes over them; and it is made before sampling, which works in place. No logits processor: those see
no ids of requests, have no way back, and are left out under speculative decoding.

Off, with a line in the log, under speculative decoding (vLLM's counts are by row, and rows are of drafts too
there) and in a vLLM that looks otherwise. Where the environment has vLLM count, that is left as it is.

vLLM's second model runner (``vllm/v1/worker/gpu``), which needs a GPU: from source, not verified on one. What
the frontend does about it is ``ends``.
"""

from __future__ import annotations

import logging
import math
import os
import sys
from typing import TYPE_CHECKING, Any

from rayguard.engine.spoiled_requests import LOOK_ENV
from rayguard.engine.vllm.patch import says, takes, wrap
from rayguard.harmless import harmless

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from rayguard.engine.vllm.interfaces import EngineWorker

_log = logging.getLogger("rayguard")

_COUNTED = "VLLM_COMPUTE_NANS_IN_LOGITS"
_FOUND = "rayguard_bad_rows"


def install() -> None:
    """Have each worker of this process look at its logits, once it has its model. Never raises."""
    with harmless("numbers"):  # vLLM's plugin loader calls in here: a start must not fail for this
        from vllm.v1.worker.worker_base import WorkerWrapperBase  # noqa: PLC0415 - the engine's processes alone

        if not os.environ.get(LOOK_ENV):
            return
        from rayguard.engine.vllm.numbers import core  # noqa: PLC0415 - likewise

        wrap(WorkerWrapperBase, "initialize_from_config", _ready)
        if core.fits():
            core.put_in()
        else:  # the frontend ends them all the same
            _log.warning("rayguard does not know this vLLM's scheduler: NaN may stay in its prefix cache")


def _ready(initialize: Callable[..., object], wrapper: Any, *args: object, **kwargs: object) -> object:
    """Begin where the model is loaded and its cache is made: before vLLM warms up, so that we are in it."""
    done = initialize(wrapper, *args, **kwargs)
    with harmless("numbers"):
        reason = look(wrapper.worker)
        if reason:
            _log.warning("rayguard does not look at this engine's logits for NaN: %s", reason)
    return done


def look(worker: EngineWorker) -> str:
    """Have the logits of ``worker`` looked at at each step; return why not, '' where they are."""
    if getattr(worker.vllm_config, "speculative_config", None) is not None:
        return "with speculative decoding vLLM does not tell whose they are"
    runner = worker.model_runner
    for kind in type(runner).__mro__:
        module = sys.modules[kind.__module__]
        if hasattr(module, "count_nans_per_row"):
            return _in_the_first(kind, module)
    sampler = getattr(runner, "sampler", None)
    if hasattr(sampler, "compute_nans"):
        return _in_the_second(sampler)
    return "" if sampler is None else "this vLLM counts none"  # without a sampler: no tokens are made here


def bad_rows(logits: torch.Tensor) -> torch.Tensor:
    """Return 1 for each row of ``logits`` (rows, vocabulary) with NaN or +inf, else 0: (rows,), int32.

    On the same device; nothing is read from it.
    """
    import torch  # noqa: PLC0415

    # NaN goes through the maximum, and is not less than anything. A row of -inf alone is what masks make.
    return (~(logits.amax(-1) < math.inf)).to(torch.int32)


def _in_the_first(kind: Any, module: Any) -> str:
    known = (
        takes(kind._sample, "self", "logits", "spec_decode_metadata")  # noqa: SLF001
        and takes(module.count_nans_per_row, "logits")
        and says(
            kind._bookkeeping_sync,  # noqa: SLF001
            f"if envs.{_COUNTED}:",
            "None if logits is None else count_nans_per_row(logits)",
            "self._get_nans_in_logits(logits)",
        )
        and says(
            kind._get_nans_in_logits,  # noqa: SLF001
            "count_nans_per_row(logits).tolist()",
            "nans_to_dict(counts, self.input_batch.req_id_to_index)",
        )
    )
    if not known:
        return "its model runner counts them otherwise than the one we know"
    if not getattr(module.envs, _COUNTED):
        wrap(kind, "_sample", _before_sampling)
        wrap(module, "count_nans_per_row", _count)
        # Not the environment variable: that is part of the key of vLLM's compiled graphs.
        setattr(module.envs, _COUNTED, True)
    return ""


def _before_sampling(
    sample: Callable[..., object],
    runner: object,
    logits: torch.Tensor | None,
    *args: object,
    **kwargs: object,
) -> object:
    if logits is not None:
        with harmless("numbers"):
            setattr(logits, _FOUND, bad_rows(logits))
    return sample(runner, logits, *args, **kwargs)


def _count(_: Callable[..., object], logits: torch.Tensor) -> torch.Tensor:
    import torch  # noqa: PLC0415

    found: torch.Tensor | None = getattr(logits, _FOUND, None)
    return torch.zeros(logits.shape[0], dtype=torch.int32) if found is None else found


def _in_the_second(sampler: Any) -> str:
    module = sys.modules[type(sampler).__call__.__module__]
    known = takes(getattr(module, "get_num_nans", _count), "logits") and says(
        type(sampler).__call__, "num_nans = get_num_nans(logits) if self.compute_nans else None"
    )
    if not known:
        return "its sampler counts them otherwise than the one we know"
    if not sampler.compute_nans:
        wrap(module, "get_num_nans", lambda _, logits: bad_rows(logits))
        sampler.compute_nans = True
    return ""
