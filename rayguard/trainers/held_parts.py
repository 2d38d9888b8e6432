"""What an object holds, by name: its attributes, and what lies in lists and dictionaries of stateful parts.

Attributes are those of its ``__dict__`` and of its ``__slots__``. An object that is a torch module itself is
a part of its own, named ''; what torch keeps of it in attributes is not told beside.
"""

from __future__ import annotations

import functools
import inspect
import random
import sys
from collections import deque
from dataclasses import dataclass
from types import MemberDescriptorType
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator

Part: TypeAlias = Any  # a module, an optimizer, a generator, a tensor, a value
ITSELF = ""  # the name of an object that is a module
_PLAIN = frozenset({str, bytes, int, float, complex, bool, type(None)})


@dataclass(frozen=True, slots=True)
class HeldPart:
    """One thing that an object holds: ``value``, in ``holder`` under ``key``. ``path`` is for people."""

    path: str
    value: Part
    holder: Part
    key: Part

    def put(self, value: object) -> None:
        """Have ``value`` in its place. Of a tuple, which takes nothing, it stays as it was made."""
        if self.holder is None:
            return
        if isinstance(self.holder, (list, deque, dict)):
            self.holder[self.key] = value
        elif self.key in getattr(self.holder, "__dict__", ()):
            self.holder.__dict__[self.key] = value  # as it was found: past any ``__setattr__``
        else:
            setattr(self.holder, self.key, value)


class Itself:
    """An object that is a module, as that: torch's own state of it."""

    def __init__(self, module: Part) -> None:
        self.module = module

    def parameters(self) -> Iterator[Part]:
        """Return its parameters."""
        return self.module.parameters()  # type: ignore[no-any-return]

    def __getattr__(self, name: str) -> Part:
        return functools.partial(getattr(sys.modules["torch"].nn.Module, name), self.module)


def held_by(
    owner: object, *, without: tuple[str, ...] = (), sizes: dict[str, int] | None = None
) -> Iterator[HeldPart]:
    """Yield all that ``owner`` holds, but for the attributes ``without``.

    ``sizes`` gets how many things lie in each list, tuple and dictionary of parts, by its path.
    """
    if is_module(owner):
        yield HeldPart(ITSELF, Itself(owner), None, None)
    for name, value in attributes_of(owner).items():
        if name not in without and not name.startswith("_rayguard") and value is not owner:
            yield from _inside(HeldPart(name, value, owner, name), (), {} if sizes is None else sizes)


def attributes_of(owner: object) -> dict[str, Part]:
    """Return the attributes of an object, also those in slots; of a module, without torch's own."""
    found: dict[str, Part] = {}
    for cls in type(owner).__mro__:
        for name, slot in vars(cls).items():
            if isinstance(slot, MemberDescriptorType) and hasattr(owner, name):
                found[name] = getattr(owner, name)
    found |= getattr(owner, "__dict__", {})
    if is_module(owner):
        found = {name: value for name, value in found.items() if name not in _of_torch()}
    return found


def is_module(value: object) -> bool:
    """Say whether it is a torch module."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.nn.Module)


def has_state(value: object) -> bool:
    """Say whether it hands its state over and takes it up: by methods of its class, or of what it stands for.

    An object that answers to any name (a client of a server, a handle of an actor) has none of its own here.
    """
    cls = type(value)
    if isinstance(value, (type, Itself)):
        return isinstance(value, Itself)
    if callable(getattr(cls, "state_dict", None)) and callable(getattr(cls, "load_state_dict", None)):
        return True
    try:
        return inspect.ismethod(value.state_dict) and inspect.ismethod(value.load_state_dict)  # type: ignore[attr-defined]
    except Exception:  # noqa: BLE001 - what it raises where it has no such name is its own
        return False


def only_plain(value: Part) -> bool:
    """Say whether a container holds numbers and texts alone: ten times faster than one after the other."""
    found = set(map(type, value.values() if isinstance(value, dict) else value))
    return found <= _PLAIN and (not isinstance(value, dict) or set(map(type, value)) <= _PLAIN)


def is_generator(value: object) -> bool:
    """Say whether it draws random numbers: torch's, NumPy's or Python's."""
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    return (
        isinstance(value, random.Random)
        or (torch is not None and isinstance(value, torch.Generator))
        or (numpy is not None and isinstance(value, (numpy.random.Generator, numpy.random.RandomState)))
    )


@functools.cache
def _of_torch() -> frozenset[str]:
    return frozenset(vars(sys.modules["torch"].nn.Module()))


def _inside(held: HeldPart, above: tuple[int, ...], sizes: dict[str, int]) -> Iterator[HeldPart]:
    value = held.value
    if not _holds_parts(value, above):
        yield held
        return
    sizes[held.path] = len(value)
    holder, inside = None if isinstance(value, tuple) else value, (*above, id(value))
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
        yield from _inside(HeldPart(f"{held.path}[{key!r}]", inner, holder, key), inside, sizes)


def _holds_parts(value: object, above: tuple[int, ...]) -> bool:
    if not isinstance(value, (list, tuple, deque, dict)) or id(value) in above or only_plain(value):
        return False
    inside = (*above, id(value))
    return any(
        type(inner) not in _PLAIN and (has_state(inner) or is_generator(inner) or _holds_parts(inner, inside))
        for inner in (value.values() if isinstance(value, dict) else value)
    )
