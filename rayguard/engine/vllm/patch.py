"""Putting something around a function of vLLM's, once, and only where it is what we know."""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def wrap(owner: object, name: str, around: Callable[..., object]) -> None:
    """Put ``around(original, *arguments)`` in the place of a function, method or class method; once."""
    original = getattr(owner, name)
    if hasattr(original, "by_rayguard"):
        return
    is_classmethod = inspect.ismethod(original)
    inner: Callable[..., object] = original.__func__ if is_classmethod else original

    @functools.wraps(inner)
    def method(*args: object, **kwargs: object) -> object:
        return around(inner, *args, **kwargs)

    method.by_rayguard = True  # type: ignore[attr-defined]
    setattr(owner, name, classmethod(method) if is_classmethod else method)


def takes(function: Callable[..., object], *names: str) -> bool:
    """Say whether a function has exactly these parameters."""
    return tuple(inspect.signature(function).parameters) == names


def says(function: Callable[..., object], *pieces: str) -> bool:
    """Say whether a function's source has all of these pieces, white space aside."""
    source = "".join(inspect.getsource(inspect.unwrap(function)).split())
    return all("".join(piece.split()) in source for piece in pieces)
