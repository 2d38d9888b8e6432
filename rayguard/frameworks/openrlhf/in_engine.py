"""What runs within the engine's own process: keeps what a push brings, and loads what was kept.

OpenRLHF pushes one parameter a call, into methods of its ``WorkerWrap``, which hand it to the model.
"""

from __future__ import annotations

import functools
import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rayguard.engine.vllm.receiver import LOAD
from rayguard.engine.weights import tensorfile
from rayguard.frameworks.openrlhf.weight_file import WeightFile
from rayguard.harmless import harmless

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import torch

PUSHES = ("update_weight", "update_weight_cuda_ipc")
LAST = "empty_cache"  # of a push's arguments: true for its last parameter
_KEEPER = "rayguard_kept"


def adopt(worker: Any, path: str, version: str, first: str) -> bool:
    """Have this worker keep what it is pushed, after it has loaded what is kept as ``version`` ('': nothing).

    Returns whether it is a new one. Called by ``collective_rpc``. ``first``: the name that pushes begin with.

    Raises:
        WeightsError: What was kept could not be loaded.
    """
    inner = getattr(worker, "worker", worker)  # vLLM's wrapper has another within
    if hasattr(inner, _KEEPER):
        return False
    if version:
        getattr(inner, LOAD)(None, path, version, tensorfile.digest_of_files((Path(path),)))
    keeper = WeightFile(path, first)
    setattr(inner, _KEEPER, keeper)
    for name in PUSHES:
        if hasattr(inner, name):
            setattr(inner, name, _keeping(inner, getattr(inner, name), keeper))
    return True


def said(
    method: Callable[..., object], args: tuple[object, ...], kwargs: dict[str, object]
) -> tuple[str, bool]:
    """Return which parameter a call of a push's method brings, and whether that is the last one."""
    given = inspect.signature(method).bind(*args, **kwargs).arguments
    return str(given["name"]), bool(given.get(LAST))


def _keeping(worker: Any, method: Callable[..., object], keeper: WeightFile) -> Callable[..., object]:
    @functools.wraps(method)
    def pushed(*args: object, **kwargs: object) -> object:
        model = worker.model_runner.model
        load: Callable[..., object] = model.load_weights

        def load_weights(
            weights: Iterable[tuple[str, torch.Tensor]], *rest: object, **more: object
        ) -> object:
            came = list(weights)
            with harmless("kept weights"):
                for name, tensor in came:
                    keeper.take(name, tensor)
            return load(came, *rest, **more)

        model.load_weights = load_weights
        try:
            answer = method(*args, **kwargs)
        finally:
            del model.load_weights
        with harmless("kept weights"):
            if said(method, args, kwargs)[1]:
                keeper.end()
        return answer

    return pushed
