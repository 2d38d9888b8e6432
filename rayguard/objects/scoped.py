"""Puts a scope around each call of a function: plain, coroutine, generator or async generator.

The wrapper is of the same kind and keeps signature and attributes, as Ray reads both.
"""

from __future__ import annotations

import functools
import inspect
from contextlib import AbstractContextManager, closing
from typing import TYPE_CHECKING, ParamSpec, Protocol, TypeVar, cast

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator, Mapping
    from typing import TypeAlias

    ScopeOf: TypeAlias = Callable[[tuple[object, ...], Mapping[str, object]], "CallScope"]

F = TypeVar("F", bound="Callable[..., object]")
P = ParamSpec("P")
R = TypeVar("R")
Y = TypeVar("Y")
S = TypeVar("S")


class CallScope(Protocol):
    """What a wrapper needs of a scope."""

    def running(self) -> AbstractContextManager[None]:
        """Make it the current scope for a while."""

    def gives(self, value: object) -> None:
        """Keep what the function gives to its caller."""

    def close(self) -> None:
        """End the scope."""


def wrapped(function: F, scope_of: ScopeOf) -> F:
    """Return ``function`` with ``scope_of(args, kwargs)`` around each call."""
    made: Callable[..., object]
    if inspect.isasyncgenfunction(function):
        made = _async_generator(function, scope_of)
    elif inspect.isgeneratorfunction(function):
        made = _generator(function, scope_of)
    elif inspect.iscoroutinefunction(function):
        made = _coroutine(function, scope_of)
    else:
        made = _plain(function, scope_of)
    return cast("F", functools.wraps(function)(made))


def _plain(function: Callable[P, R], scope_of: ScopeOf) -> Callable[P, R]:
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        with closing(scope_of(args, kwargs)) as scope:
            with scope.running():
                result = function(*args, **kwargs)
            scope.gives(result)
            return result

    return call


def _coroutine(
    function: Callable[P, Coroutine[object, object, R]], scope_of: ScopeOf
) -> Callable[P, Coroutine[object, object, R]]:
    async def call(*args: P.args, **kwargs: P.kwargs) -> R:
        with closing(scope_of(args, kwargs)) as scope:
            with scope.running():
                result = await function(*args, **kwargs)
            scope.gives(result)
            return result

    return call


def _generator(
    function: Callable[P, Generator[Y, S, R]], scope_of: ScopeOf
) -> Callable[P, Generator[Y, S, R]]:
    def call(*args: P.args, **kwargs: P.kwargs) -> Generator[Y, S, R]:
        scope = scope_of(args, kwargs)
        inner = function(*args, **kwargs)
        turn: Callable[..., Y] = inner.__next__
        sent: tuple[object, ...] = ()
        try:
            while True:
                try:
                    with scope.running():
                        item = turn(*sent)
                except StopIteration as stop:
                    result: R = stop.value
                    scope.gives(result)
                    return result
                scope.gives(item)
                try:
                    value = yield item
                    turn, sent = (inner.send, (value,)) if value is not None else (inner.__next__, ())
                except GeneratorExit:
                    raise
                except BaseException as error:  # noqa: BLE001 - thrown in by the caller: the function's business
                    turn, sent = inner.throw, (error,)
        finally:
            with scope.running():
                inner.close()
            scope.close()

    return call


def _async_generator(
    function: Callable[P, AsyncGenerator[Y, S]], scope_of: ScopeOf
) -> Callable[P, AsyncGenerator[Y, S]]:
    async def call(*args: P.args, **kwargs: P.kwargs) -> AsyncGenerator[Y, S]:
        scope = scope_of(args, kwargs)
        inner = function(*args, **kwargs)
        turn: Callable[..., Awaitable[Y]] = inner.__anext__
        sent: tuple[object, ...] = ()
        try:
            while True:
                try:
                    with scope.running():
                        item = await turn(*sent)
                except StopAsyncIteration:
                    return
                scope.gives(item)
                try:
                    value = yield item
                    turn, sent = (inner.asend, (value,)) if value is not None else (inner.__anext__, ())
                except GeneratorExit:
                    raise
                except BaseException as error:  # noqa: BLE001 - see ``_generator``
                    turn, sent = inner.athrow, (error,)
        finally:
            with scope.running():
                await inner.aclose()
            scope.close()

    return call
