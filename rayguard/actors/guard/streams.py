"""A generator of the user's whose first step is made before anybody reads: until then it may be made anew."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator

R = TypeVar("R")
Y = TypeVar("Y")  # what a stream yields
S = TypeVar("S")  # what is sent into it


class Stream(Enum):
    """How a stream stands. An enum, since its members are pickled by name: an object would be copied."""

    ENDED = "ended"


async def next_item(stream: AsyncGenerator[Y, Any], sent: object, thrown: BaseException | None) -> Y | Stream:
    """Return what an asynchronous stream yields next, after what is sent or thrown into it."""
    try:
        return await (stream.asend(sent) if thrown is None else stream.athrow(thrown))
    except StopAsyncIteration:
        return Stream.ENDED


class Begun(Generic[Y, S, R]):
    """A generator that has made its first step: until then, and no longer, it may be made anew."""

    __slots__ = ("_ended", "_first", "_fresh", "_stream")

    def __init__(self, stream: Generator[Y, S, R]) -> None:
        self._stream = stream
        self._fresh = True
        self._ended: StopIteration | None = None
        try:
            self._first = next(stream)
        except StopIteration as stop:
            self._ended = stop

    def __iter__(self) -> Begun[Y, S, R]:
        return self

    def __next__(self) -> Y:
        if not self._fresh:
            return next(self._stream)
        self._fresh = False
        if self._ended is not None:
            raise StopIteration(self._ended.value)
        return self._first

    def send(self, value: S) -> Y:
        """Send into the stream."""
        return self._stream.send(value)

    def throw(self, *error: Any) -> Y:
        """Throw into the stream: an error, or its type, itself and its traceback."""
        return self._stream.throw(*error)

    def close(self) -> None:
        """Close the stream."""
        self._stream.close()
