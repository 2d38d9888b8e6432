"""Loading a whole version into the model of one vLLM worker that serves: all of its parameters, or none.

Written against vLLM 0.32 (``vllm.model_executor.model_loader.reload``). Who sends, and what is said of it, is
``receiver``.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from rayguard.errors import WeightsError

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

    from rayguard.engine.vllm.interfaces import EngineWorker


def reload(worker: EngineWorker, sent: Iterator[tuple[str, torch.Tensor]]) -> int:
    """Load what is sent, names and CPU tensors, and return how many tensors went in.

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
    tensors = _Counted(sent, tied)
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
