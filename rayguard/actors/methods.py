"""Which methods of a class are under guard or watch, how one tells that one is, and which say its state.

Stands alone: workers that are only watched load it as they start, and nothing else of ``rayguard.actors``.
"""

from __future__ import annotations

import functools
import inspect
from types import FunctionType
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

from rayguard.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    F = TypeVar("F", bound=Callable[..., object])

Given: TypeAlias = "tuple[tuple[object, ...], dict[str, object]]"  # the arguments of a call

MARK = "__rayguard__"  # the attribute of a class that holds its mark
IDEMPOTENT = "__rayguard_idempotent__"  # the attribute of a method that says whether it may run twice
RAY_RETRIES = "__ray_max_task_retries__"  # Ray's own, of ``@ray.method(max_task_retries=...)``
_GUARDED = "__rayguard_guarded__"
GUARDED_CALL = (
    "_rayguard_guarded"  # what the wrappers' inner functions are called, and those around `__init__`
)
GUARDED_INIT = "_rayguard_init"
_PAIRS = (("state_dict", "load_state_dict"), ("snapshot", "restore"))
_TYPING = frozenset({"typing", "typing_extensions"})
_COMPARED = {  # by torch itself, with its own: another one counts as the user's
    "torch.nn.modules.module": frozenset(
        {"forward", "get_extra_state", "register_buffer", "set_extra_state"}
    ),
}


def is_guarded(method: object) -> bool:
    """Say whether ``method`` is one of our wrappers."""
    return getattr(method, _GUARDED, False) is True


def leave(method: F) -> F:
    """Mark ``method`` as one that no guard wraps: it belongs to the guard itself."""
    setattr(method, _GUARDED, True)
    return method


def state_methods(cls: type, said: Sequence[str] | None = None) -> tuple[str, str] | None:
    """Return the methods of ``cls`` that hand its state over and take it up; None where there are none.

    As its user ``said``, here or in its mark; else ``state_dict`` and ``load_state_dict``, or ``snapshot``
    and ``restore``: a method that needs no argument, and one that takes the state. What a class has of torch
    says the weights alone, and not what an actor holds beside them: it counts only where its user says so.

    Raises:
        ConfigError: ``cls`` has not what is ``said`` here.
    """
    asked = said or getattr(getattr(cls, MARK, None), "state_methods", None)
    for save, load in (asked,) if asked else _PAIRS:
        methods = getattr(cls, save, None), getattr(cls, load, None)
        if all(map(_takes, methods, (0, 1))) and (asked or not any(map(_of_torch, methods))):
            return save, load
    if said:
        raise ConfigError(
            f"{cls.__name__} cannot hand its state over by {' and '.join(said)}: it must have both methods, "
            "the first without an argument and the second with one, the state; no coroutines, no generators"
        )
    return None


def _takes(method: object, count: int) -> bool:
    """Say whether ``method`` of a class can be called with ``count`` arguments, and answers at once."""
    kinds = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)
    if not callable(method) or any(kind(method) for kind in kinds):
        return False
    try:
        inspect.signature(method).bind(*(None,) * (1 + count))
    except (TypeError, ValueError):
        return False
    return True


def _of_torch(method: object) -> bool:
    return str(getattr(method, "__module__", "")).partition(".")[0] == "torch"


def bare(instance: object, name: str) -> Callable[..., Any]:
    """Return a method of ``instance`` for a call by the guard itself: without our wrapper if it has one."""
    method: Any = getattr(instance, name)
    code = getattr(getattr(method, "__func__", None), "__code__", None)
    if code is None or code.co_name != GUARDED_CALL:
        return cast("Callable[..., Any]", method)
    return functools.partial(inspect.getclosurevars(method.__func__).nonlocals["call"], instance)


def bare_methods(cls: type, said: Sequence[str] | None = None) -> dict[str, FunctionType]:
    """Return the methods of ``cls`` that a guard is to wrap: not the one by which the guard has its state.

    A guarded class has none; what is derived from it may have some.

    Raises:
        ConfigError: As ``state_methods``.
    """
    names = state_methods(cls, said)
    found = dict(public_methods(cls))
    if names is not None:
        found.pop(names[0], None)
    return found


def public_methods(cls: type) -> Iterator[tuple[str, FunctionType]]:
    """Yield the public methods and ``__init__``, inherited ones too; what is guarded already is left out.

    Static and class methods, properties and other descriptors stay as they are, and so do names with an
    underscore: Ray's own ``__ray_call__`` and ``__ray_terminate__`` among them. So does what a plain wrapper
    would change: ``types.coroutine``, a ``Protocol``'s ``__init__``, which looks whether it was replaced, and
    torch's own methods of which it asks whether a module has replaced them.
    """
    for name in dir(cls):
        if name.startswith("_") and name != "__init__":
            continue
        found = inspect.getattr_static(cls, name, None)  # a metaclass may list what is not there
        if not isinstance(found, FunctionType) or is_guarded(found) or found.__module__ in _TYPING:
            continue
        if name in _COMPARED.get(found.__module__, ()):
            continue
        if not found.__code__.co_flags & inspect.CO_ITERABLE_COROUTINE:
            yield name, found
