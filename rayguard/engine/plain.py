"""Any object as an engine: rebuilt when it fails, its calls repeated; nothing inside it is known.

For home-made engines and other libraries. It has no processes that we could prove to be its own, so only
exceptions tell that it failed, and a call that was interrupted begins afresh. vLLM has an adapter of its
own (``rayguard.engine.vllm.engine``).
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from typing_extensions import override

from rayguard.engine.protocol import Engine, EngineProcess
from rayguard.engine.weights.version import WeightReceipt, Weights
from rayguard.errors import WeightsError

if TYPE_CHECKING:
    from collections.abc import Sequence


class PlainEngine(Engine):
    """One life of an object that ``build_engine`` returned.

    Optional methods it may have: ``load_weights(weights: Weights)`` for weight pushes, ``shutdown()`` or
    ``close()`` for its end.
    """

    def __init__(self, built: object) -> None:
        self._built = built

    @property
    @override
    def handle(self) -> object:
        return self._built

    @property
    @override
    def life(self) -> object:
        return self._built

    @override
    def close(self, *, polite_s: float, force_s: float) -> tuple[EngineProcess, ...]:
        end = getattr(self._built, "shutdown", None) or getattr(self._built, "close", None)
        if callable(end):
            with contextlib.suppress(Exception):  # it failed already; nothing of it can be forced
                end()
        return ()

    @override
    def push(self, weights: Weights, *, deadline_s: float) -> Sequence[WeightReceipt]:
        load = getattr(self._built, "load_weights", None)
        if not callable(load):
            raise WeightsError(
                f"{type(self._built).__qualname__} has no load_weights(weights) method: it cannot be "
                f"brought to version {weights.version!r}"
            )
        load(weights)
        return [WeightReceipt(version=weights.version, digest=weights.digest, tensors=len(weights.names()))]
