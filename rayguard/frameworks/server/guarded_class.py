"""Puts a ``GuardedLink`` around the methods of a client's class, once, and only where it is what we know."""

from __future__ import annotations

import functools
import inspect
import logging
import weakref
from typing import TYPE_CHECKING

from rayguard.frameworks.server.guarded_link import DEADLINE_S, ClientShape, GuardedLink

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping

_log = logging.getLogger("rayguard")
_links: weakref.WeakKeyDictionary[object, GuardedLink] = weakref.WeakKeyDictionary()


def unknown(cls: type, known: Mapping[str, tuple[str, ...]]) -> str:
    """Return what of a class is not as ``known``: methods, and the names of their first parameters."""
    for name, parameters in known.items():
        method = inspect.getattr_static(cls, name, None)
        if not inspect.isfunction(method):
            return f"it has no method {name}"
        found = tuple(inspect.signature(method).parameters)[1:]
        if found[: len(parameters)] != parameters:
            return f"{name} takes {', '.join(found)}"
    return ""


def tell_unknown(cls: type, why: str) -> None:
    """Say that a class is none that is known, and so left as it is."""
    _log.warning(
        "rayguard does not know this %s.%s (%s): its server is not guarded", cls.__module__, cls.__name__, why
    )


def link_of(client: object) -> GuardedLink | None:
    """Return the link of a client that is guarded."""
    return _links.get(client)


def linked(client: object, shape: ClientShape, deadline_s: float = DEADLINE_S) -> GuardedLink:
    """Return the link of a client, made with its first call."""
    found = _links.get(client)
    if found is None:
        found = _links[client] = GuardedLink(client, shape, deadline_s=deadline_s)
    return found


def put_around(cls: type, name: str, around: Callable[..., object]) -> None:
    """Have ``around(method, client, *args, **kwargs)`` called in the place of a method."""
    method = inspect.getattr_static(cls, name)

    @functools.wraps(method)
    def guarded(client: object, *args: object, **kwargs: object) -> object:
        return around(method, client, *args, **kwargs)

    guarded.by_rayguard = True  # type: ignore[attr-defined]
    setattr(cls, name, guarded)


def is_guarded(cls: type, name: str) -> bool:
    """Say whether that was done already."""
    return hasattr(inspect.getattr_static(cls, name, None), "by_rayguard")


def guard_asking(cls: type, name: str, shape: ClientShape, deadline_s: float) -> None:
    """Guard a method that asks the server for something and touches no device."""

    def around(method: Callable[..., object], client: object, *args: object, **kwargs: object) -> object:
        link = linked(client, shape, deadline_s)
        return link.ask(lambda: method(client, *args, **kwargs), name)

    put_around(cls, name, around)


def guard_begin(cls: type, name: str, shape: ClientShape, deadline_s: float) -> None:
    """Guard the method that makes the group for weights."""

    def around(method: Callable[..., object], client: object, *args: object, **kwargs: object) -> object:
        return linked(client, shape, deadline_s).begin(lambda: method(client, *args, **kwargs))

    put_around(cls, name, around)


def guard_push(
    cls: type, name: str, shape: ClientShape, deadline_s: float, key: Callable[..., Hashable]
) -> None:
    """Guard a method whose arguments are weights; ``key`` of them says what they are weights of."""

    def around(method: Callable[..., object], client: object, *args: object, **kwargs: object) -> object:
        link = linked(client, shape, deadline_s)
        return link.push((name, key(*args, **kwargs)), name, method, args, kwargs)

    put_around(cls, name, around)
