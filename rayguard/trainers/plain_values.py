"""Tensors, arrays and plain values of a trainer, alone or in containers and dataclasses: kept, and put back.

A tensor that is one of a module's is kept as its name there, and is that module's tensor again afterwards;
any other goes back into the tensor that ``__init__`` made in its place, which an optimizer may hold.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import datetime as dt
import decimal
import enum
import pathlib
import sys
from collections import deque
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from rayguard.errors import StateLostError
from rayguard.trainers.held_parts import only_plain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

Value: TypeAlias = Any  # a plain one, a container, a dataclass's object
Tensor: TypeAlias = Value
MOST_VALUES = 100_000  # in one attribute; more is data, not state
_PLAIN = (
    *(int, float, str, bytes, bytearray, bool, complex, type(None), range, enum.Enum, pathlib.PurePath),
    *(dt.date, dt.time, dt.timedelta, decimal.Decimal),
)
_ROWS = (list, tuple, set, frozenset, deque)


class NotPlainError(Exception):
    """There is something else in it."""


@dataclasses.dataclass(frozen=True, slots=True)
class TensorOf:
    """In the place of a tensor that is one of a module's: of the part ``part``, under ``name`` there."""

    part: str
    name: str
    detached: bool


class PartTensors:
    """The tensors of the modules among an object's parts, by what they are and where they lie."""

    def __init__(self, parts: Mapping[str, Value]) -> None:
        self._parts = parts
        self._known: dict[object, tuple[str, str]] | None = None
        self._named: dict[str, dict[str, Tensor]] = {}

    def name_of(self, tensor: Tensor) -> TensorOf | None:
        """Return which one of them ``tensor`` is, or shares all its memory with."""
        known = self._all()
        found = known.get(id(tensor))
        if found is not None:
            return TensorOf(*found, detached=False)
        found = None if tensor.requires_grad else known.get(_place(tensor))
        return None if found is None else TensorOf(*found, detached=True)

    def get(self, which: TensorOf) -> Tensor:
        """Return that tensor.

        Raises:
            StateLostError: There is none of that name.
        """
        self._all()
        found = self._named.get(which.part, {}).get(which.name)
        if found is None:
            raise StateLostError(f"{which.part or 'the module'} has no tensor {which.name} after __init__")
        return found.detach() if which.detached else found

    def holds(self, tensor: Tensor) -> bool:
        """Say whether the memory of ``tensor`` begins where that of one of them does."""
        known = self._all()
        return id(tensor) in known or _begin(tensor) in known

    def _all(self) -> dict[object, tuple[str, str]]:
        if self._known is None:
            self._known = {}
            for part, value in self._parts.items():
                if hasattr(value, "named_parameters") and hasattr(value, "named_buffers"):
                    named = dict(value.named_parameters(remove_duplicate=False))
                    named |= dict(value.named_buffers(remove_duplicate=False))
                    self._named[part] = named
                    for name, tensor in named.items():
                        for key in (id(tensor), _place(tensor), _begin(tensor)):
                            if key is not None:
                                self._known.setdefault(key, (part, name))
        return self._known


def kept_value(value: object, tensors: PartTensors, too_many: Callable[[], None]) -> Value:
    """Return ``value`` as it is kept. Tensors are not copied; of a graph of gradients they are the numbers.

    ``too_many`` is called where it holds more than ``MOST_VALUES``.

    Raises:
        NotPlainError: It is no plain value.
    """
    counted = 0

    def keep(one: Value, above: tuple[int, ...]) -> Value:
        nonlocal counted
        plain = _is_row(one) and only_plain(one)
        before = counted
        counted += 1 + (len(one) if plain else 0)
        if before <= MOST_VALUES < counted:
            too_many()
        if plain:
            return one
        if isinstance(one, _PLAIN) or _of_torch(one) or _is_array(one):
            return one
        if _is_any_tensor(one):
            found = tensors.name_of(one)
            if found is None and hasattr(one, "to_local"):
                raise NotPlainError  # a part of it lies on other ranks
            return found or (one.detach() if one.grad_fn is not None else one)
        if id(one) in above:
            raise NotPlainError  # it holds itself
        return _each(one, lambda inner, _: keep(inner, (*above, id(one))))

    return keep(value, ())


def put_back(value: object, made: object, tensors: PartTensors, seen: dict[int, Tensor]) -> Value:
    """Return what was kept as the object that is newly ``made`` has it.

    ``seen``: kept tensors by their ``id``, as they are now.

    Raises:
        StateLostError: A module has no such tensor any more.
    """
    if _is_row(value) and only_plain(value):
        return value
    if isinstance(value, TensorOf):
        return tensors.get(value)
    if _is_any_tensor(value):
        if id(value) not in seen:
            seen[id(value)] = _into(value, made, tensors)
        return seen[id(value)]
    if isinstance(value, _PLAIN) or _of_torch(value) or _is_array(value):
        return value
    if dataclasses.is_dataclass(value) and type(made) is type(value):
        for name in _names(value):
            inner = put_back(getattr(value, name), getattr(made, name, None), tensors, seen)
            object.__setattr__(made, name, inner)
        return made
    return _each(value, lambda inner, key: put_back(inner, _inner(made, key), tensors, seen))


def tensors_in(value: object) -> Iterator[Tensor]:
    """Yield the tensors in what was kept, always in the same order."""
    if _is_any_tensor(value):
        yield value
    elif _holds(value) and not (_is_row(value) and only_plain(value)):
        for inner in _inside(value).values():
            yield from tensors_in(inner)


def _each(value: Value, change: Callable[[Value, Value], Value]) -> Value:
    """Return a container with each thing in it changed; the same one where none has."""
    if not _holds(value):
        raise NotPlainError
    old = _inside(value)
    if isinstance(value, dict):
        for key in value:
            change(key, None)
    new = {key: change(inner, key) for key, inner in old.items()}
    return value if all(new[key] is inner for key, inner in old.items()) else _with(value, new)


def _is_row(value: object) -> bool:
    return isinstance(value, (dict, *_ROWS))


def _holds(value: object) -> bool:
    return _is_row(value) or (dataclasses.is_dataclass(value) and not isinstance(value, (type, TensorOf)))


def _inside(value: Value) -> dict[Value, Value]:
    if isinstance(value, dict):
        return value
    if isinstance(value, _ROWS):
        return dict(enumerate(value))
    return {name: getattr(value, name) for name in _names(value)}


def _with(value: Value, new: Mapping[Value, Value]) -> Value:
    """Return a container like ``value`` that holds ``new``."""
    if isinstance(value, (tuple, set, frozenset)):
        cls, items = cast("Value", type(value)), list(new.values())
        return cls(*items) if hasattr(value, "_fields") else cls(items)
    other = copy.copy(value)
    for key, inner in new.items():
        if isinstance(value, (dict, list, deque)):
            other[key] = inner
        else:
            object.__setattr__(other, key, inner)
    return other


def _inner(made: object, key: object) -> object:
    if isinstance(made, (list, tuple, deque)):
        return made[key] if isinstance(key, int) and key < len(made) else None
    return made.get(key) if isinstance(made, dict) else None


def _into(value: Tensor, made: Value, tensors: PartTensors) -> Tensor:
    """Return the tensor that was made, with the numbers of ``value``, where that can be."""
    if not _is_any_tensor(made):
        return value
    fits = made.shape == value.shape and made.dtype == value.dtype
    if fits and not tensors.holds(made):  # a module's own is the module's to restore
        with contextlib.suppress(RuntimeError), sys.modules["torch"].no_grad():
            made.copy_(value)
            return made.requires_grad_(value.requires_grad) if made.is_leaf else made
    return value.to(made.device)  # it takes nothing: expanded, or made for inference


def _names(value: Value) -> list[str]:
    """Return the names of all that a dataclass's object holds: what is pickled of it."""
    fields = [one.name for one in dataclasses.fields(value) if hasattr(value, one.name)]
    return [*fields, *(name for name in getattr(value, "__dict__", ()) if name not in fields)]


def _is_any_tensor(value: object) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _of_torch(value: object) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, (torch.dtype, torch.device, torch.Size))


def _is_array(value: object) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, (numpy.ndarray, numpy.generic)) and value.dtype != object


def _begin(tensor: Tensor) -> object:
    try:
        at = 0 if hasattr(tensor, "to_local") else tensor.data_ptr()
    except (RuntimeError, ValueError):  # without memory of its own: sparse, or not made yet
        at = 0
    return (tensor.device, at) if at else None


def _place(tensor: Tensor) -> object:
    begin = _begin(tensor)
    return None if begin is None else (begin, tuple(tensor.shape), tensor.stride(), tensor.dtype)
