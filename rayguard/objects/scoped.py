"""Puts a scope around each call of a function: plain, coroutine, generator or async generator.

The wrapper is of the same kind and keeps signature and attributes, as Ray reads both.
"""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Generator
    from contextlib import AbstractContextManager

F = TypeVar("F", bound="Callable[..., Any]")


class CallScope(Protocol):
    """What a wrapper needs of a scope."""

    def running(self) -> AbstractContextManager[None]:
        """Make it the current scope for a while."""

    def gives(self, value: Any) -> None:
        """Keep what the function gives to its caller."""

    def end(self) -> None:
        """End the scope."""


def wrapped(function: F, scope_of: Callable[[tuple[Any, ...], dict[str, Any]], CallScope]) -> F:
    """Return ``function`` with ``scope_of(args, kwargs)`` around each call."""
    if inspect.isasyncgenfunction(function):
        make = _async_generator
    elif inspect.isgeneratorfunction(function):
        make = _generator
    elif inspect.iscoroutinefunction(function):
        make = _coroutine
    else:
        make = _plain
    return cast("F", functools.wraps(function)(make(function, scope_of)))


def _plain(function: Callable[..., Any], scope_of: Any) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        scope: CallScope = scope_of(args, kwargs)
        try:
            with scope.running():
                result = function(*args, **kwargs)
            scope.gives(result)
            return result
        finally:
            scope.end()

    return call


def _coroutine(function: Callable[..., Any], scope_of: Any) -> Callable[..., Any]:
    async def call(*args: Any, **kwargs: Any) -> Any:
        scope: CallScope = scope_of(args, kwargs)
        try:
            with scope.running():
                result = await function(*args, **kwargs)
            scope.gives(result)
            return result
        finally:
            scope.end()

    return call


def _generator(function: Callable[..., Any], scope_of: Any) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        scope: CallScope = scope_of(args, kwargs)
        inner = function(*args, **kwargs)
        turn: Any = inner.__next__
        sent: tuple[Any, ...] = ()
        try:
            while True:
                try:
                    with scope.running():
                        item = turn(*sent)
                except StopIteration as stop:
                    scope.gives(stop.value)
                    return stop.value
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
            scope.end()

    return call


def _async_generator(function: Callable[..., Any], scope_of: Any) -> Callable[..., Any]:
    async def call(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        scope: CallScope = scope_of(args, kwargs)
        inner = function(*args, **kwargs)
        turn: Any = inner.__anext__
        sent: tuple[Any, ...] = ()
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
            scope.end()

    return call
