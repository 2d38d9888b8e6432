"""Which methods of a class are under guard or watch, and how one tells that one is already.

Stands alone: workers that are only watched load it as they start, and nothing else of ``rayguard.actors``.
"""

from __future__ import annotations

import inspect
from types import FunctionType
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    F = TypeVar("F", bound=Callable[..., Any])

MARK = "__rayguard__"  # the attribute of a class that holds its mark
_GUARDED = "__rayguard_guarded__"


def is_guarded(method: object) -> bool:
    """Say whether ``method`` is one of our wrappers."""
    return getattr(method, _GUARDED, False) is True


def leave(method: F) -> F:
    """Mark ``method`` as one that no guard wraps: it belongs to the guard itself."""
    setattr(method, _GUARDED, True)
    return method


def public_methods(cls: type) -> Iterator[tuple[str, FunctionType]]:
    """Yield the public methods and ``__init__``, inherited ones too; what is guarded already is left out.

    Static and class methods, properties and other descriptors stay as they are, and so do names with an
    underscore: Ray's own ``__ray_call__`` and ``__ray_terminate__`` among them.
    """
    for name in dir(cls):
        if name.startswith("_") and name != "__init__":
            continue
        found = inspect.getattr_static(cls, name)
        if isinstance(found, FunctionType) and not is_guarded(found):
            yield name, found
