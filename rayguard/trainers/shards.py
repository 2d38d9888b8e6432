"""State that is spread over ranks: what of it one rank has, and how ranks of another number share it.

A DTensor (FSDP2, tensor parallelism) belongs to a mesh of process groups that dies with them. Kept is the
rank's own part with how it is placed; it becomes a DTensor again on the mesh that ``setup`` has made.
"""

from __future__ import annotations

import copy
import sys
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from rayguard.errors import StateLostError

State: TypeAlias = Any  # what torch calls a state dict, or a part of one: a tensor, a mapping, a number


@dataclass(frozen=True, slots=True)
class LocalShard:
    """One rank's part of a DTensor: of ``shape`` and ``stride`` as a whole, placed on a mesh of ``mesh``."""

    local: State
    placements: tuple[State, ...]
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    mesh: tuple[int, ...]


def taken_apart(value: State) -> State:
    """Return a state with each DTensor as its ``LocalShard``; nothing is copied."""
    if is_distributed(value):
        mesh = tuple(value.device_mesh.shape)
        return LocalShard(
            value.to_local().detach(),
            tuple(value.placements),
            tuple(value.shape),
            tuple(value.stride()),
            mesh,
        )
    return _each(value, taken_apart)


def put_together(value: State, meshes: Sequence[State]) -> State:
    """Return a state with each ``LocalShard`` as a DTensor on the one of ``meshes`` that has its shape.

    Raises:
        StateLostError: There is no such mesh.
    """

    def one(inner: State) -> State:
        if not isinstance(inner, LocalShard):
            return _each(inner, one)
        from torch.distributed.tensor import DTensor  # noqa: PLC0415 - there are some

        mesh = next((mesh for mesh in meshes if tuple(mesh.shape) == inner.mesh), None)
        if mesh is None:
            raise StateLostError(
                f"the state was sharded over a mesh of {inner.mesh}, and setup has made none of that shape: "
                f"{[tuple(mesh.shape) for mesh in meshes]}"
            )
        local = inner.local.to(mesh.device_type)
        return DTensor.from_local(
            local, mesh, inner.placements, run_check=False, shape=_size(inner.shape), stride=inner.stride
        )

    return one(value)


def shared_anew(states: Sequence[State], rank: int, ranks: int) -> State:
    """Return the state of ``rank`` of ``ranks``, from the states of another number of ranks, in their order.

    Sharded tensors are joined and cut again, along the dimension that they are sharded in. All else is what
    the rank of the same place had (past the last one, the first again): random numbers, above all.

    Raises:
        StateLostError: They are placed over a mesh of several dimensions, or not by even shards.
    """
    return _shared(states[rank % len(states)], states, rank, ranks)


def _shared(own: State, all_of_them: Sequence[State], rank: int, ranks: int) -> State:
    if isinstance(own, LocalShard):
        return _cut(own, all_of_them, rank, ranks)
    if isinstance(own, Mapping):
        inner = {
            key: _shared(value, [one[key] for one in all_of_them], rank, ranks)
            if has_distributed(value)
            else value
            for key, value in own.items()
        }
        return type(own)(inner)  # type: ignore[call-arg]
    if isinstance(own, (list, tuple)) and has_distributed(own):
        parts = (
            _shared(value, [one[at] for one in all_of_them], rank, ranks) for at, value in enumerate(own)
        )
        return type(own)(parts)
    return own


def _cut(own: LocalShard, all_of_them: Sequence[LocalShard], rank: int, ranks: int) -> LocalShard:
    import torch  # noqa: PLC0415 - there are tensors

    if len(own.mesh) != 1 or len(own.placements) != 1:
        raise StateLostError(
            f"state that is sharded over a mesh of {own.mesh} cannot be shared by another number of ranks"
        )
    (placement,) = own.placements
    if placement.is_replicate():
        return LocalShard(own.local, own.placements, own.shape, own.stride, (ranks,))
    if not placement.is_shard():
        raise StateLostError(
            f"state that is placed as {placement} cannot be shared by another number of ranks"
        )
    whole = torch.cat([one.local for one in all_of_them], placement.dim)
    pieces = torch.chunk(whole, ranks, placement.dim)
    local = pieces[rank] if rank < len(pieces) else whole.narrow(placement.dim, 0, 0)
    return LocalShard(local.clone(), own.placements, own.shape, own.stride, (ranks,))


def meshes_of(values: Iterable[State]) -> list[State]:
    """Return the meshes on which the parameters of modules among these values lie."""
    found: list[State] = []
    for value in values:
        if callable(getattr(type(value), "parameters", None)):
            for parameter in _parameters(value):
                if is_distributed(parameter) and parameter.device_mesh not in found:
                    found.append(parameter.device_mesh)
    return found


def _parameters(module: State) -> Iterable[State]:
    try:
        return list(module.parameters())
    except TypeError:  # something else that has a method of that name
        return ()


def is_distributed(value: State) -> bool:
    """Say whether it is a DTensor."""
    return hasattr(value, "to_local") and hasattr(value, "placements")


def has_distributed(value: State) -> bool:
    """Say whether there is a DTensor in a state, taken apart or not."""
    if isinstance(value, LocalShard) or is_distributed(value):
        return True
    if isinstance(value, Mapping):
        return any(map(has_distributed, value.values()))
    return isinstance(value, (list, tuple)) and any(map(has_distributed, value))


def _each(value: State, change: State) -> State:
    if type(value) in (dict, OrderedDict):
        changed = copy.copy(value)  # with what torch hangs on it: the versions of a module's parts
        changed.update((key, change(inner)) for key, inner in value.items())
        return changed
    if type(value) in (list, tuple):
        return type(value)(map(change, value))
    return value


def _size(shape: tuple[int, ...]) -> State:
    return sys.modules["torch"].Size(shape)
