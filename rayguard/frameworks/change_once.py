"""Changing a framework's module where it is as it is known, once; else it is left alone, and that is said."""

from __future__ import annotations

import inspect
import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import CodeType, ModuleType

_log = logging.getLogger("rayguard")


def change_once(
    module: ModuleType,
    mark: str,
    change: Callable[[], object],
    *,
    unknown: Callable[[ModuleType], str],
    framework: str,
    otherwise: str,
) -> bool:
    """Make a change to a module; say whether it is made, now or before.

    Args:
        module: Of the framework, as it was imported.
        mark: The name of what the module then has, so that it is changed once.
        change: Makes the change.
        unknown: Returns what of the module is not as it is known; '' if all is.
        framework: What it is called, for people.
        otherwise: What does not work where it is not changed, for people.
    """
    if hasattr(module, mark):
        return True
    if what := unknown(module):
        _log.warning(
            "rayguard: %s: %s of this %s is not as it is known (%s)",
            otherwise,
            module.__name__,
            framework,
            what,
        )
        return False
    setattr(module, mark, True)
    change()
    return True


def names_in(code: CodeType) -> Iterator[str]:
    """Yield the names that a function uses, and the functions within it."""
    yield from code.co_names
    yield from code.co_varnames
    yield from code.co_freevars
    for inner in code.co_consts:
        if inspect.iscode(inner):
            yield from names_in(inner)
