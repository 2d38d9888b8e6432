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
from collections import defaultdict
from functools import partial
from typing import TYPE_CHECKING

from rayguard.engine.vllm.adoption import records
from rayguard.engine.vllm.changes.fingerprint import fingerprint
from rayguard.engine.weights import tensorfile
from rayguard.errors import WeightsError
from rayguard.recovery.tally import TALLY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import torch

    from rayguard.engine.vllm.interfaces import EngineWorker

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
        worker.rayguard_receipt = NOTHING  # from here on the model may be half loaded
        count = _reload(worker, source)
    except Exception as error:
        raise WeightsError(
            f"weights {version!r} were not loaded by worker {getattr(worker, 'rank', 0)}: "
            f"{type(error).__name__}: {error}"
        ) from error
    worker.rayguard_receipt = {"version": version, "digest": digest, "tensors": count}
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
        self.payload = payload
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


def _reload(worker: EngineWorker, source: _Source) -> int:
    """Load through vLLM's layerwise reload and return how many tensors went in.

    ``model.load_weights`` alone does not do: after start-up, parameters are packed for their kernels (on
    the CPU they are empty and have no loader), and layerwise reload packs the new ones again.
    """
    import torch  # noqa: PLC0415
    from vllm.config import set_current_vllm_config  # noqa: PLC0415

    try:
        from vllm.model_executor.model_loader.reload import (  # noqa: PLC0415
            finalize_layerwise_reload,
            initialize_layerwise_reload,
        )
    except ImportError as error:
        raise WeightsError("this vLLM has no layerwise weight reload; use vLLM 0.15 or newer") from error

    runner = worker.model_runner
    model = runner.get_model()
    tied = _tied(model)
    tensors = _Counted(source.tensors(), tied)
    with set_current_vllm_config(worker.vllm_config), torch.no_grad():
        initialize_layerwise_reload(model)
        try:
            model.load_weights(iter(tensors))
            unsent = _unsent(model)
            if worker.model_config.quantization is None:  # else its parameters are no checkpoint's tensors
                _refuse_missing(unsent, tied)
        except BaseException:
            _forget_buffered(model)
            finalize_layerwise_reload(model, worker.model_config)
            raise
        finalize_layerwise_reload(model, worker.model_config)
        _repack(model, unsent & tied.keys())
    for name in ("reset_lora_state", "reset_encoder_cache", "reset_mm_cache"):  # made by the old weights
        getattr(runner, name, _nothing)()
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()  # a failed copy must be known before the receipt is written
    return tensors.count


def _nothing() -> None:
    """Stand in for a cache that this model runner does not have."""


class _Counted:
    """The tensors on their way into the model: counted, and tied ones compared."""

    def __init__(self, tensors: Iterator[tuple[str, torch.Tensor]], tied: dict[str, str]) -> None:
        self.tensors, self.tied, self.count = tensors, tied, 0

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        import torch  # noqa: PLC0415

        first: dict[str, tuple[str, torch.Tensor]] = {}
        for name, tensor in self.tensors:
            if name in self.tied:
                other, seen = first.setdefault(self.tied[name], (name, tensor))
                if seen is not tensor and not torch.equal(seen, tensor):
                    raise WeightsError(
                        f"{name!r} and {other!r} differ, but this engine's model ties them into one tensor: "
                        f"set tie_word_embeddings=False in the config that the engine is built with"
                    )
            self.count += 1
            yield name, tensor


def _tied(model: torch.nn.Module) -> dict[str, str]:
    """Return the names that share a parameter with another name, each with the first name of its group."""
    groups: defaultdict[int, list[str]] = defaultdict(list)
    for name, parameter in model.named_parameters(remove_duplicate=False):
        groups[id(parameter)].append(name)
    return {name: names[0] for names in groups.values() if len(names) > 1 for name in names}


def _unsent(model: torch.nn.Module) -> set[str]:
    """Return the parameters that a load has not filled, or not whole. Ask before finalizing.

    vLLM only warns of layers that got nothing, and fills the rest of a fused layer (q and k without v)
    with memory as it finds it: an engine that claims a version and samples from another model.
    """
    from vllm.model_executor.layers.attention import is_deferred_attention_layer  # noqa: PLC0415
    from vllm.model_executor.layers.linear import LinearBase  # noqa: PLC0415
    from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info  # noqa: PLC0415
    from vllm.model_executor.model_loader.reload.meta import SKIP_LOAD_TENSORS  # noqa: PLC0415

    unsent: set[str] = set()
    for prefix, layer in model.named_modules():
        info = get_layerwise_info(layer)
        if not info.can_load() or is_deferred_attention_layer(layer):
            continue  # filled to the last element, or not filled from checkpoints
        filled = {name for name, _ in info.loaded_weights}
        if isinstance(layer, LinearBase):  # others (vocabulary, experts) are padded: never quite full
            filled = set()
        unsent |= {
            f"{prefix}.{name}"
            for name, parameter in layer.named_parameters(recurse=False)
            if name not in filled and name not in SKIP_LOAD_TENSORS and parameter.numel()
        }
    return unsent


def _refuse_missing(unsent: set[str], tied: dict[str, str]) -> None:
    """Refuse a push that leaves a parameter as it was; a tied one is filled with its sibling."""
    sent_groups = {group for name, group in tied.items() if name not in unsent}
    missing = sorted(name for name in unsent if tied.get(name) not in sent_groups)
    if missing:
        more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""  # noqa: PLR2004
        raise WeightsError(
            f"the push is incomplete: nothing, or not all, came for {', '.join(missing[:5])}{more}. Send "
            f"every tensor of the model with each version."
        )


def _forget_buffered(model: torch.nn.Module) -> None:
    """Drop what a failed load left waiting, so that finalizing puts the old parameters back.

    Left there, a layer would be finished with memory as it finds it, or the next push would count this
    one's tensors as its own and finish the layer too early.
    """
    from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info  # noqa: PLC0415

    for layer in model.modules():
        info = get_layerwise_info(layer)
        info.loaded_weights.clear()
        info.load_numel = 0


def _repack(model: torch.nn.Module, names: set[str]) -> None:
    """Pack tied layers again that keep a packed copy of their own (``cpu_linear``, vLLM on the CPU).

    A tied lm_head is loaded as the embedding, so layerwise reload passes it over: it would go on with the
    old weights for ever, unseen (measured: log-probabilities off by 15).
    """
    for name in names:
        layer = model.get_submodule(name.rpartition(".")[0])
        if getattr(layer, "cpu_linear", None) is not None:
            layer.quant_method.process_weights_after_loading(layer)
