"""Calls of watched code before the guard has come to their process: nothing but a place in a list.

What puts them there is ``lazy_watch``; what becomes of one that fails, or still runs when the guard comes, is
``activation``, which ``worker_hook`` hands down. Loads the standard library only: each worker loads this one.
"""

from __future__ import annotations

import functools
import inspect
import threading
from typing import TYPE_CHECKING, Any, Protocol

from rayguard.actors.guard import slow_init
from rayguard.actors.methods import leave
from rayguard.harmless import harmless

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from types import FunctionType, TracebackType

    Method = Callable[..., Any]
    Wrap = Callable[["Late"], Method]

INIT = "__init__"


class Guard(Protocol):
    """The module ``activation``: all that is heavy."""

    def guard_class(self, cls: type, named: dict[str, Any] | None) -> None:
        """Put a class under the guard's own wrappers now."""

    def everything(self) -> None:
        """Do all that a worker's start did not wait for."""

    def settle(self) -> None:
        """Give what waits its wrappers."""

    def ended(self, early: Early, error: BaseException | None) -> None:
        """Tell of a call that had begun before the guard came."""


def _no_guard() -> Guard:
    raise RuntimeError("nobody said how the guard is loaded: that is for worker_hook.setup")


lock = threading.Lock()
under_way: dict[int, Early] = {}  # guarded by `lock`
load_guard: Callable[[], Guard] = _no_guard


class Late:
    """A method or a function whose wrapper of the guard comes later: ``run`` is what a call does now."""

    __slots__ = ("cls", "method", "name", "owner", "run")

    def __init__(self, name: str, method: FunctionType, cls: type | None = None) -> None:
        self.name, self.method, self.cls = name, method, cls
        self.owner: Any = None  # what stands for a function
        self.run: Method = _early(self)


class Early:
    """One call before the guard is there. ``entered`` is set when the guard comes while it runs."""

    __slots__ = ("entered", "instance", "late", "over")

    def __init__(self, late: Late, args: tuple[object, ...], coroutine: object = None) -> None:
        self.late = late
        self.instance = args[0] if late.cls is not None else None
        self.entered: Any = None
        self.over = slow_init.begun(self.instance, coroutine) if late.name == INIT else None

    def __enter__(self) -> None:
        with lock:
            under_way[id(self)] = self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if self.over is not None:
            self.over()
        with lock:
            under_way.pop(id(self), None)
        if isinstance(error, Exception) or self.entered is not None:
            with harmless("watched call"):
                load_guard().ended(self, error)


def dispatching(late: Late) -> Method:
    """Return what stands in the class: of the same kind as the method, with its signature and attributes."""
    watched = _of_its_kind(late, _sync, _async, _generator)
    functools.update_wrapper(watched, late.method)
    return leave(watched)


def _of_its_kind(late: Late, sync: Wrap, asynchronous: Wrap, generator: Wrap) -> Method:
    if inspect.iscoroutinefunction(late.method):
        return asynchronous(late)
    return generator(late) if inspect.isgeneratorfunction(late.method) else sync(late)


def _sync(late: Late) -> Method:
    def _rayguard_watched(*args: object, **kwargs: object) -> object:
        return late.run(*args, **kwargs)

    return _rayguard_watched


def _async(late: Late) -> Method:
    async def _rayguard_watched(*args: object, **kwargs: object) -> object:
        return await late.run(*args, **kwargs)

    return _rayguard_watched


def _generator(late: Late) -> Method:
    def _rayguard_watched(*args: object, **kwargs: object) -> Generator[object, object, object]:
        return (yield from late.run(*args, **kwargs))

    return _rayguard_watched


# In each of these, the inner function has the name by which ``call_recovery`` finds guarded calls.


def _early(late: Late) -> Method:
    if late.name == INIT:
        return _early_async_init(late) if inspect.iscoroutinefunction(late.method) else _early_init(late)
    return _of_its_kind(late, _early_sync, _early_async, _early_generator)


def _early_init(late: Late) -> Method:
    def _rayguard_init(*args: object, **kwargs: object) -> object:
        with Early(late, args):
            return late.method(*args, **kwargs)

    return _rayguard_init


def _early_async_init(late: Late) -> Method:
    async def _rayguard_init(*args: object, **kwargs: object) -> object:
        made = late.method(*args, **kwargs)
        with Early(late, args, made):
            return await made

    return _rayguard_init


def _early_sync(late: Late) -> Method:
    def _rayguard_guarded(*args: object, **kwargs: object) -> object:
        with Early(late, args):
            return late.method(*args, **kwargs)

    return _rayguard_guarded


def _early_async(late: Late) -> Method:
    async def _rayguard_guarded(*args: object, **kwargs: object) -> object:
        with Early(late, args):
            return await late.method(*args, **kwargs)

    return _rayguard_guarded


def _early_generator(late: Late) -> Method:
    def _rayguard_guarded(*args: object, **kwargs: object) -> Generator[object, object, object]:
        with Early(late, args):
            return (yield from late.method(*args, **kwargs))

    return _rayguard_guarded
