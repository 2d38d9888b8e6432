"""How many bytes one Python object holds, with what only it holds; bounded, and no code of the user's runs.

Types are compared exactly: a subclass or a proxy may answer anything.
"""

from __future__ import annotations

import array
import gc
import itertools
import mmap
import sys
import types
from dataclasses import dataclass
from multiprocessing.shared_memory import SharedMemory
from typing import Any

MOST = 256  # objects are visited for one
_PLAIN = (bytes, bytearray, str, int, float, complex, array.array)
_NOT_INTO = (
    *(type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.CodeType),
    *(types.FrameType, types.MethodType),
)


@dataclass(frozen=True, slots=True)
class Buffer:
    """Memory of an object that is not Python's own; ``name`` is the same for two views of it."""

    name: object
    size: int
    device: str = "cpu"


def buffer(one: Any) -> Buffer | None:
    """Return the memory behind an array, a tensor, a mapping or a view; None for what has none."""
    kind = type(one)
    try:
        if kind is mmap.mmap:
            return Buffer(id(one), len(one))
        if kind is memoryview:
            return Buffer(id(one.obj), one.nbytes)
        if kind is SharedMemory:
            return Buffer(id(getattr(one, "_mmap", one)), one.size)  # what its views are of
        return _array(one, kind) or _tensor(one, kind)
    except (ValueError, BufferError, AttributeError):  # a mapping that is closed, a view that is released
        return None
    except (RuntimeError, NotImplementedError):  # a tensor without memory: sparse, meta, of a transformation
        return None


def _array(one: Any, kind: type) -> Buffer | None:
    numpy = sys.modules.get("numpy")
    if numpy is None or kind is not getattr(numpy, "ndarray", None):
        return None
    base = one
    while type(base.base) is kind:
        base = base.base
    return Buffer(id(base), int(base.nbytes))


def _tensor(one: Any, kind: type) -> Buffer | None:
    if kind not in tensor_types():
        return None
    storage = one.untyped_storage()
    return Buffer(("torch", storage.data_ptr()), int(storage.nbytes()), str(one.device))


def tensor_types() -> tuple[type, ...]:
    """Return torch's plain tensor types; empty where torch is not loaded. Never loads it."""
    torch = sys.modules.get("torch")
    tensor, nn = getattr(torch, "Tensor", None), getattr(torch, "nn", None)
    parameter = getattr(nn, "Parameter", None)
    return tuple(kind for kind in (tensor, parameter) if isinstance(kind, type))


def name_of(kind: type) -> str:
    """Return the name of a type for people, as it is: what a metaclass says of itself is not asked."""
    name, module = str(type.__getattribute__(kind, "__qualname__")), module_of(kind)
    return name if module in ("builtins", "__main__", "") else f"{module}.{name}"


def module_of(kind: type) -> str:
    """Return the module of a type, '' where what stands there is no name."""
    module = type.__getattribute__(kind, "__module__")
    return module if type(module) is str else ""


def tensors_by_device(heap: list[object], most: int) -> dict[str, tuple[int, int]]:
    """Return number and bytes of torch's tensors by device, views of the same memory counted once."""
    kinds = frozenset(tensor_types())
    if not kinds:
        return {}
    tensors = itertools.compress(heap, map(kinds.__contains__, map(type, heap)))
    found: dict[str, dict[object, int]] = {}
    for tensor in itertools.islice(tensors, most):
        memory = buffer(tensor)
        if memory is not None:
            found.setdefault(memory.device, {})[memory.name] = memory.size
    return {device: (len(each), sum(each.values())) for device, each in found.items()}


def weight(one: object, seen: set[object]) -> int:
    """Return the bytes that ``one`` holds and that are not in ``seen`` yet, which takes them in.

    ``seen`` has ids of objects and names of buffers. At most 256 objects are visited: what is big is near.
    """
    found, waiting, visits = 0, [one], 0
    while waiting and visits < MOST:
        held = waiting.pop(0)
        visits += 1
        if id(held) in seen or issubclass(type(held), _NOT_INTO):
            continue
        seen.add(id(held))
        found += _own(held, seen)
        if not issubclass(type(held), _PLAIN):
            waiting += gc.get_referents(held)[: MOST - visits]
    return found


def _own(one: object, seen: set[object]) -> int:
    """Return what ``one`` itself takes."""
    memory = buffer(one)
    if memory is not None:
        if memory.name != id(one) and memory.name in seen:
            return 0
        seen.add(memory.name)
        return memory.size
    if type(one) in _PLAIN:
        return sys.getsizeof(one)
    # object's answer, and not what the user's class says of itself; a list's and dict's own count their slots
    kind = type(one)
    if kind in (list, dict, set, tuple, frozenset):
        return sys.getsizeof(one)
    return object.__sizeof__(one)


def describe(one: object) -> str:
    """Say what ``one`` is, in a few words: "bytearray", "torch tensor on cpu that keeps its graph"."""
    if type(one) in tensor_types():
        memory = buffer(one)
        return f"torch tensor on {memory.device}" if memory else "torch tensor"
    return name_of(type(one))


def keeps_graph(one: Any) -> bool:
    """Say whether ``one`` is a tensor that keeps the graph which computed it, with all that graph holds."""
    return type(one) in tensor_types() and one.grad_fn is not None
