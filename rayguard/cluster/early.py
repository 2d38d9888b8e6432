"""Calls of watched code before the guard has come to their process: nothing but a place in a list.

What puts them there is ``watched``; what becomes of one that fails, or still runs when the guard comes, is
``arriving``. Loads the standard library only, since every worker of a job loads this one.
"""

from __future__ import annotations

import functools
import inspect
import threading
from typing import TYPE_CHECKING, Any

from rayguard.actors.methods import leave
from rayguard.cluster.unharmed import unharmed

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from types import FunctionType, TracebackType

    Method = Callable[..., Any]

INIT = "__init__"

lock = threading.Lock()
under_way: dict[int, Early] = {}  # guarded by `lock`


class Late:
    """A method or a function whose wrapper of the guard comes later: ``run`` is what a call does now."""

    __slots__ = ("cls", "method", "name", "owner", "run")

    def __init__(self, name: str, method: FunctionType, cls: type | None = None) -> None:
        self.name, self.method, self.cls = name, method, cls
        self.owner: Any = None  # what stands for a function
        self.run: Method = _early(self)


class Early:
    """One call before the guard is there. ``entered`` is set when the guard comes while it runs."""

    __slots__ = ("entered", "instance", "late")

    def __init__(self, late: Late, args: tuple[Any, ...]) -> None:
        self.late = late
        self.instance = args[0] if late.cls is not None else None
        self.entered: Any = None

    def __enter__(self) -> None:
        with lock:
            under_way[id(self)] = self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        with lock:
            under_way.pop(id(self), None)
        if isinstance(error, Exception) or self.entered is not None:
            with unharmed("watched call"):
                from rayguard.cluster import arriving  # noqa: PLC0415 - loads the guard

                arriving.ended(self, error)


def dispatching(late: Late) -> Method:
    """Return what stands in the class: of the same kind as the method, with its signature and attributes."""
    watched: Method
    if inspect.iscoroutinefunction(late.method):
        watched = _async(late)
    elif inspect.isgeneratorfunction(late.method):
        watched = _generator(late)
    else:
        watched = _sync(late)
    functools.update_wrapper(watched, late.method)
    return leave(watched)


def _sync(late: Late) -> Method:
    def _rayguard_watched(*args: Any, **kwargs: Any) -> Any:
        return late.run(*args, **kwargs)

    return _rayguard_watched


def _async(late: Late) -> Method:
    async def _rayguard_watched(*args: Any, **kwargs: Any) -> Any:
        return await late.run(*args, **kwargs)

    return _rayguard_watched


def _generator(late: Late) -> Method:
    def _rayguard_watched(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        return (yield from late.run(*args, **kwargs))

    return _rayguard_watched


# In each of these, the inner function has the name by which ``rayguard.actors.keeper`` finds guarded calls.


def _early(late: Late) -> Method:
    if late.name == INIT:
        return _early_init(late)
    if inspect.iscoroutinefunction(late.method):
        return _early_async(late)
    if inspect.isgeneratorfunction(late.method):
        return _early_generator(late)
    return _early_sync(late)


def _early_init(late: Late) -> Method:
    def _rayguard_init(*args: Any, **kwargs: Any) -> None:
        with Early(late, args):
            late.method(*args, **kwargs)

    return _rayguard_init


def _early_sync(late: Late) -> Method:
    def _rayguard_guarded(*args: Any, **kwargs: Any) -> Any:
        with Early(late, args):
            return late.method(*args, **kwargs)

    return _rayguard_guarded


def _early_async(late: Late) -> Method:
    async def _rayguard_guarded(*args: Any, **kwargs: Any) -> Any:
        with Early(late, args):
            return await late.method(*args, **kwargs)

    return _rayguard_guarded


def _early_generator(late: Late) -> Method:
    def _rayguard_guarded(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        with Early(late, args):
            return (yield from late.method(*args, **kwargs))

    return _rayguard_guarded
