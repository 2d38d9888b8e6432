"""What runs inside vLLM's workers: takes weights, loads them whole or not at all, says what it holds.

Methods on vLLM's ``WorkerBase``, called with ``collective_rpc``: ``rayguard_load_weights``,
``rayguard_weights`` and ``rayguard_fingerprint``. The user's own ``worker_extension_cls`` stays free.

Not here: checking values before they are sent (``rayguard.engine.weights.version.check``), comparing what the
workers report (``rayguard.engine.weights.version.verify``), and dropping the engine's prefix cache after a
push: that is the caller's business (``reset_prefix_cache``), since the cache belongs to the scheduler in
another process; without it the engine goes on answering from keys and values that the old weights made.

What a receipt does not say: that weights were changed by another way since
(``rayguard.engine.vllm.changes`` sees those).
"""

from __future__ import annotations

import io
import logging
import multiprocessing
import os
import sys
from functools import partial
from typing import TYPE_CHECKING

from rayguard.engine.vllm.adoption import records
from rayguard.engine.vllm.changes.fingerprint import fingerprint
from rayguard.engine.vllm.layerwise_reload import reload
from rayguard.engine.weights import tensorfile
from rayguard.engine.weights.version import Weights
from rayguard.errors import WeightsError
from rayguard.recovery.tally import TALLY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import torch

    from rayguard.engine.vllm.interfaces import EngineWorker
    from rayguard.engine.weights.layout import Layout

    Receipt = Mapping[str, object]

log = logging.getLogger("rayguard")

WORKER_MODULE = "vllm.v1.worker.worker_base"
LOAD, ASK = "rayguard_load_weights", "rayguard_weights"  # what a worker is asked for
FINGERPRINT, MOVE_RECORDS = "rayguard_fingerprint", "rayguard_move_records"
NOTHING: Receipt = {"version": "", "digest": "", "tensors": 0}


def load_weights(
    worker: EngineWorker, payload: bytes | None, path: str | None, version: str, digest: str
) -> dict[str, object]:
    """Load one version into this worker's model and return its receipt.

    Tensors cannot be arguments: vLLM's encoding delivers them as lists. vLLM carries only the text of an
    exception back to the caller, so the text must name the cause.

    Raises:
        WeightsError: Other bytes arrived, or the model did not take them. The version is then unknown
            ("") until a later push succeeds; the model can still run, on old and new layers mixed.
    """
    try:
        source = _Source(payload, path)
        source.prove(digest)
        layout = source.layout()
        worker.rayguard_receipt = NOTHING  # from here on the model may be half loaded
        count = reload(worker, source.tensors())
    except Exception as error:
        raise WeightsError(
            f"weights {version!r} were not loaded by worker {getattr(worker, 'rank', 0)}: "
            f"{type(error).__name__}: {error}"
        ) from error
    worker.rayguard_receipt = {"version": version, "digest": digest, "tensors": count, "layout": layout}
    return dict(worker.rayguard_receipt)


def weights(worker: EngineWorker) -> dict[str, object]:
    """Return the receipt of the last push; an empty version when there was none, or it failed."""
    return dict(getattr(worker, "rayguard_receipt", NOTHING))


METHODS: dict[str, Callable[..., object]] = {
    LOAD: load_weights,
    ASK: weights,
    FINGERPRINT: fingerprint,
    MOVE_RECORDS: records.move_here,
}


class Receiver:
    """The same methods as ``worker_extension_cls``, for where plugins are off (``VLLM_PLUGINS``).

    It answers by ``__getattr__`` and has no method of its own: vLLM refuses an extension class with a
    name that the worker already has, and it has them where the plugin ran as well.
    """

    def __getattr__(self, name: str) -> Callable[..., object]:
        """Answer for these methods alone."""
        if name in METHODS:
            return partial(METHODS[name], self)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


def install_receiver() -> bool:
    """Give vLLM's workers the two methods, in a process that has workers; return whether it has them now.

    Called by the vLLM plugin in every process of an engine, any number of times. Never raises: an
    engine without the methods still serves, and a push to it fails with a clear error.
    """
    try:
        if not _has_workers():
            return False
        import vllm.v1.worker.worker_base as module  # noqa: PLC0415 - the engine's processes alone

        for name, method in METHODS.items():
            setattr(module.WorkerBase, name, method)
    except Exception:  # the edge where vLLM's plugin loader calls in: a start must not fail for this
        log.exception("rayguard cannot give vLLM's workers their methods to receive weights")
        TALLY.guard_error("vllm_receiver")
        return False
    return True


def _has_workers() -> bool:
    """Whether this process runs workers, or may. Spares a process that only reads vLLM's settings 1.5 s."""
    return (
        WORKER_MODULE in sys.modules
        or multiprocessing.parent_process() is not None
        or os.environ.get("VLLM_ENABLE_V1_MULTIPROCESSING") == "0"
    )


class _Source:
    """The bytes of one push, from memory or from files."""

    def __init__(self, payload: bytes | None, path: str | None) -> None:
        if (payload is None) == (path is None):
            raise WeightsError("a push needs either bytes or a path")
        self.payload, self.path = payload, path
        self.files = tensorfile.checkpoint_files(path) if path is not None else ()

    def prove(self, digest: str) -> None:
        """Refuse other bytes than were sent, before the model is touched."""
        if self.payload is not None:
            arrived = tensorfile.digest(io.BytesIO(self.payload))
        else:
            arrived = tensorfile.digest_of_files(self.files)
        if arrived != digest:
            hint = "; its files were changed after the push began" if self.files else ""
            raise WeightsError(f"wrong digest {arrived[:12]} where {digest[:12]} was sent{hint}")

    def layout(self) -> Layout:
        """Return dtype and shape of the tensors, by name."""
        payload = None if self.payload is None else bytes(self.payload)
        return Weights("sent", payload=payload, path=self.path).names()

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield names and CPU tensors; of files only one tensor at a time is in memory."""
        from safetensors import safe_open  # noqa: PLC0415
        from safetensors.torch import load  # noqa: PLC0415

        if self.payload is not None:
            yield from load(bytes(self.payload)).items()
        for file in self.files:
            with safe_open(file, framework="pt", device="cpu") as opened:
                for name in opened.keys():  # noqa: SIM118 - no dict
                    yield name, opened.get_tensor(name)
