"""Options that nobody has: says which one was meant, and what to write, in place of Python's ``TypeError``.

For the values and functions that users call by hand (``explained``). What an option may be is checked where
it is used. Keys of ``runtime_env={"rayguard": {...}}`` are ``rayguard.cluster.plugin.config``'s.
"""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any, TypeVar, cast

from rayguard.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

T = TypeVar("T")
_SHOWN = 3  # options in an example of what to write


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the one of ``known`` that ``name`` most likely means; None where none is near."""
    import difflib  # noqa: PLC0415 - only after a mistake

    return next(iter(difflib.get_close_matches(name, list(known), n=1)), None)


def meant(name: str, known: Iterable[str]) -> str:
    """Return the end of a sentence that says which one was meant, '' where none is near."""
    near = nearest(name, known)
    return "" if near is None else f"; did you mean {near!r}?"


def explained(target: T) -> T:
    """Return a class or function that refuses options it does not have with a ``ConfigError`` that helps.

    The same object for a class (its ``__init__`` is wrapped), a wrapper for a function. Costs nothing but one
    more frame until a call does not fit.
    """
    if isinstance(target, type):
        own = cast("Callable[..., object]", target.__init__)  # type: ignore[misc]
        setattr(target, "__init__", _explained(own, target.__name__))  # noqa: B010 - a method may not be assigned to
        return target
    function = cast("Callable[..., object]", target)
    return cast("T", _explained(function, function.__name__))


def _explained(function: Callable[..., object], name: str) -> Callable[..., object]:
    def begun(args: tuple[object, ...], kwargs: Mapping[str, object]) -> Any:
        try:
            return function(*args, **kwargs)
        except TypeError as error:
            if error.__traceback__ is None or error.__traceback__.tb_next is not None:
                raise  # from within: the call itself was fine
            said = _what_to_write(function, name, args, kwargs)
            raise ConfigError(said or str(error)) from None

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> object:
        return begun(args, kwargs)

    @functools.wraps(function)
    async def call_async(*args: Any, **kwargs: Any) -> object:
        return await begun(args, kwargs)

    return call_async if inspect.iscoroutinefunction(function) else call


def _what_to_write(
    function: Callable[..., object], name: str, args: tuple[object, ...], kwargs: Mapping[str, object]
) -> str:
    """Return what is wrong with a call and what to write instead; '' where that is not plain."""
    parameters = inspect.signature(function).parameters
    own = [
        one for one in parameters if one != "self" and not one.startswith("_")
    ]  # Ray adds one for its tracing
    kinds = {one: parameters[one].kind for one in own}
    by_place = [one for one, kind in kinds.items() if kind is not inspect.Parameter.KEYWORD_ONLY]
    unknown = [one for one in kwargs if one not in kinds]
    if unknown:
        near = nearest(unknown[0], kinds)
        write = f"Did you mean {name}({near}=...)?" if near else f"Write {name}({', '.join(kinds)})"
        return f"{name} knows no option {unknown[0]!r}; it has {', '.join(kinds)}. {write}"
    needed = [one for one in kinds if parameters[one].default is inspect.Parameter.empty]
    example = ", ".join(f"{one}=..." for one in (needed or list(kinds)[:_SHOWN]))
    given = len(args) - ("self" in parameters)
    if given > len(by_place):
        places = f"at most {len(by_place)} by place, the others" if by_place else "its options"
        return f"{name} takes {places} by name, got {given} without one. Write {name}({example})"
    missing = [one for one in needed if one not in kwargs and one not in by_place[:given]]
    if missing:
        return f"{name} needs {' and '.join(missing)}. Write {name}({example})"
    return ""
