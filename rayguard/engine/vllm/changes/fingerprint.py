"""Whether the weights in one of vLLM's workers are the same as a moment ago: cheap, and for that alone.

A sum over the bits of each parameter and buffer, computed where they lie: milliseconds for gigabytes on a
GPU. It is no proof of what they are: that is the receipt (``rayguard.engine.vllm.receiver``). Packed layers
(vLLM on the CPU) keep their weights inside the function that multiplies with them, and get another function
when they are loaded.
"""

from __future__ import annotations

import hashlib
import itertools
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from rayguard.engine.vllm.interfaces import EngineWorker

_functions = itertools.count(1)
_NUMBER = "rayguard_number"


def fingerprint(worker: EngineWorker) -> str:
    """Return the fingerprint of this worker's model; raises where its weights cannot be read now."""
    import torch  # noqa: PLC0415

    running, model = hashlib.blake2b(digest_size=16), worker.model_runner.get_model()
    with torch.no_grad():
        for name, tensor in itertools.chain(model.named_parameters(), model.named_buffers()):
            running.update(f"{name} {tuple(tensor.shape)} {_sum(tensor)}\n".encode())
    for name, layer in model.named_modules():
        packed: Callable[..., torch.Tensor] | None = getattr(layer, "cpu_linear", None)
        running.update(f"{name} {_number(packed)}\n".encode())
    return running.hexdigest()


def _sum(tensor: torch.Tensor) -> int:
    import torch  # noqa: PLC0415

    whole = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    bits = tensor.detach() if tensor.dtype == torch.bool else tensor.detach().view(whole)
    return int(bits.sum(dtype=torch.int64).item())


def _number(packed: object) -> int:
    """Return a number that this function alone has: an address is used again."""
    if packed is None or not hasattr(packed, "__dict__"):
        return 0
    if not hasattr(packed, _NUMBER):
        setattr(packed, _NUMBER, next(_functions))
    return int(getattr(packed, _NUMBER))
