"""EasyR1 goes on with batches that its workers do not divide: 512 rows on 6 of them, say.

Where rows are sampled or scored, the copies that fill up the last piece are cut off again; where gradients
are made, they do not count (``rayguard.batching.dataproto``). A worker's mini-batch is rounded up, so that as
many optimizer steps are made as were asked for. verl pads by itself and is left alone. Each of the places
is looked at before it is changed; where one is not as it is known, EasyR1 says itself what does not divide.
"""

from __future__ import annotations

import functools
import inspect
import logging
import threading
from typing import TYPE_CHECKING, Any

from rayguard.batching import dataproto

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

DISPATCH = "verl.single_controller.base.decorator"
PROTOCOL = "verl.protocol"
TRAINER = "verl.trainer.ray_trainer"
WORKERS = "verl.workers.fsdp_workers"
_MASK = "response_mask"
_MESH = "_init_dist_mesh"
_SHAPES: dict[str, dict[str, tuple[str, ...]]] = {
    DISPATCH: {
        "dispatch_dp_compute_data_proto": ("worker_group", "args", "kwargs"),
        "collect_dp_compute_data_proto": ("worker_group", "outputs"),
    },
    PROTOCOL: {"DataProto.split": ("self", "split_size"), "DataProto.chunk": ("self", "chunks")},
    TRAINER: {"get_seqlen_balanced_partitions": ("seqlen_list", "k_partitions", "equal_size")},
    WORKERS: {f"FSDPWorker.{_MESH}": ("self", "config", "role")},
}
_OF_VERL = "is_padding_enabled"  # of verl's own ``DataProto``
_ATTACHED = "__rayguard_batches__"
_log = logging.getLogger("rayguard")


class _Call(threading.local):
    """Of this thread's call: how many rows its batch had, and how many were added."""

    rows: int = 0
    pads: int = 0


_call = _Call()


def attach(module: ModuleType) -> bool:
    """Change one of the four modules of EasyR1, just imported; say whether it could be."""
    if hasattr(module, _ATTACHED):
        return True
    if _is_of_verl(module):
        return False
    for path, parameters in _SHAPES[module.__name__].items():
        found: Any = module
        for name in path.split("."):
            found = getattr(found, name, None)
        if not callable(found) or tuple(inspect.signature(found).parameters) != parameters:
            _log.warning(
                "rayguard: batches that do not divide are refused by EasyR1: %s.%s is not as it is known",
                module.__name__,
                path,
            )
            return False
    setattr(module, _ATTACHED, True)
    _CHANGES[module.__name__](module)
    return True


def _is_of_verl(module: Any) -> bool:
    proto = getattr(module, "DataProto", None)
    return hasattr(proto, _OF_VERL) or (module.__name__ == DISPATCH and proto is None)


def _change_dispatch(module: Any) -> None:
    dispatch, collect = module.dispatch_dp_compute_data_proto, module.collect_dp_compute_data_proto
    proto = module.DataProto

    @functools.wraps(dispatch)
    def padded(worker_group: Any, *args: object, **kwargs: object) -> object:
        world = worker_group.world_size
        args = tuple(_pad(one, world, proto) for one in args)
        kwargs = {name: _pad(one, world, proto) for name, one in kwargs.items()}
        return dispatch(worker_group, *args, **kwargs)

    @functools.wraps(collect)
    def unpadded(worker_group: object, outputs: object) -> object:
        (rows, pads), (_call.rows, _call.pads) = (_call.rows, _call.pads), (0, 0)
        found = collect(worker_group, outputs)
        if not pads or getattr(found, "batch", None) is None:  # metrics: some for each rank, none for a row
            return found
        each, rest = divmod(len(found), rows + pads)
        return found if rest else dataproto.unpad(found, pads * each)

    module.dispatch_dp_compute_data_proto, module.collect_dp_compute_data_proto = padded, unpadded


def _pad(data: Any, world: int, proto: type) -> Any:
    _call.rows = _call.pads = 0
    if not isinstance(data, proto) or not len(data) or not len(data) % world:  # type: ignore[arg-type]
        return data
    rows: Any = data
    if _MASK in rows.batch.keys():  # noqa: SIM118 - a TensorDict iterates over rows
        found, pads = dataproto.pad(rows, world, (_MASK,))
    else:
        pads = -len(rows) % world
        whole, rest = divmod(pads, len(rows))
        found = proto.concat([rows] * (1 + whole) + ([rows[:rest]] if rest else []))  # type: ignore[attr-defined]
    _call.rows, _call.pads = len(rows), pads
    return found


def _change_protocol(module: Any) -> None:
    split = module.DataProto.split

    @functools.wraps(split)
    def uneven(self: Any, split_size: int) -> object:
        if not len(self) % split_size:
            return split(self, split_size)
        return [self[start : start + split_size] for start in range(0, len(self), split_size)]

    module.DataProto.split = uneven


def _change_trainer(module: Any) -> None:
    balanced = module.get_seqlen_balanced_partitions

    @functools.wraps(balanced)
    def uneven(seqlen_list: list[int], k_partitions: int, equal_size: bool) -> list[list[int]]:  # noqa: FBT001
        rows = len(seqlen_list)
        pads = -rows % k_partitions if equal_size and rows >= k_partitions else 0
        found = balanced(seqlen_list + [0] * pads, k_partitions, equal_size)
        return [[row for row in part if row < rows] for part in found] if pads else found

    module.get_seqlen_balanced_partitions = uneven


def _change_workers(module: Any) -> None:
    make = getattr(module.FSDPWorker, _MESH)

    @functools.wraps(make)
    def rounded_up(self: Any, config: Any, role: str) -> None:
        import torch.distributed as dist  # noqa: PLC0415 - EasyR1 has loaded it

        total = config.global_batch_size * max(1, self.config.rollout.n)
        ranks = dist.get_world_size() // config.ulysses_size
        if not total % ranks or config.fsdp.enable_cpu_offload:
            make(self, config, role)
            return
        micro, config.micro_batch_size_per_device_for_update = (
            config.micro_batch_size_per_device_for_update,
            1,
        )
        try:
            make(self, config, role)  # with 1, since it refuses a mini-batch that is no multiple
        finally:
            config.micro_batch_size_per_device_for_update = micro
        config.global_batch_size_per_device = -(-total // ranks)

    setattr(module.FSDPWorker, _MESH, rounded_up)


_CHANGES: dict[str, Callable[[Any], None]] = {
    DISPATCH: _change_dispatch,
    PROTOCOL: _change_protocol,
    TRAINER: _change_trainer,
    WORKERS: _change_workers,
}
