"""Names who holds a reference: ``module.NAME``, ``Trainer.cache[...]``, a closure, a suspended generator.

A bounded walk up the garbage collector's graph; keeps nothing, raises nothing that a user could see.
"""

from __future__ import annotations

import collections
import gc
import time
import types
from typing import TYPE_CHECKING, Any

from rayguard.objects import core as ray_core
from rayguard.objects import heap
from rayguard.objects.proof import Grip

if TYPE_CHECKING:
    from collections.abc import Collection

_LEVELS = 6
_MOST_NAMES = 4
_DEADLINE_S = 1.0


def name_holders(object_ids: Collection[str], deadline_s: float = _DEADLINE_S) -> dict[str, list[str]]:
    """Return up to four names of holders for each of ``object_ids`` that this process refers to."""
    until = time.thread_time() + deadline_s
    if not object_ids:
        return {}
    wanted = set(object_ids)
    known = set(map(id, gc.get_objects()))  # what the search makes for itself is not among them
    try:
        found = heap.search(
            ray_core.reference_type(),
            lambda one: one.hex() in wanted,
            most=len(wanted) * 4,
            deadline_s=deadline_s,
        )
    except heap.SlowHeapError:
        return {}
    names: dict[str, list[str]] = {}
    known.difference_update(id(item.holders) for item in found)
    for item in found:
        of_object = names.setdefault(item.target.hex(), [])
        for holder in item.holders:
            name = _path(holder, item.target, known, until)
            if name not in of_object and len(of_object) < _MOST_NAMES:
                of_object.append(name)
        if Grip.UNSEEN in item.grips and len(of_object) < _MOST_NAMES:
            of_object.append("a variable of running code")
    return names


def _path(holder: Any, held: Any, known: set[int], until: float) -> str:
    """Return the shortest name for ``holder``: up through containers to something that has a name."""
    suffix = ""
    for _ in range(_LEVELS):
        name = _root(holder, held)
        if name is not None:
            return name + suffix
        parents = [one for one in gc.get_referrers(holder) if id(one) in known and one is not held]
        parent = min(parents, key=_rank, default=None)
        suffix = _inside(holder, held, parent) + suffix
        if parent is None:
            return f"a {type(holder).__name__} that a variable holds{_shown(suffix)}"
        held, holder = holder, parent
        if time.thread_time() > until:
            break
    name = _root(holder, held)
    return name + suffix if name else f"a {type(holder).__name__} that something holds{_shown(suffix)}"


def _shown(suffix: str) -> str:
    return f" ({suffix})" if suffix else ""


def _rank(one: Any) -> int:
    """Prefer what has a name."""
    if isinstance(one, dict):
        return 0 if "__builtins__" in one else 2
    if isinstance(one, (types.FunctionType, type)) or not isinstance(one, (list, tuple, set, types.CellType)):
        return 1
    return 3


def _root(holder: Any, held: Any) -> str | None:
    """Return a name for ``holder`` if it has one by itself."""
    if isinstance(holder, dict):
        return f"{holder.get('__name__', '?')}.{_key_of(holder, held)}" if "__builtins__" in holder else None
    if _is_container(holder):
        return None
    return _code(holder) or _attribute(holder, held)


def _code(holder: Any) -> str:
    if isinstance(holder, types.FunctionType):
        return f"the closure of {holder.__module__}.{holder.__qualname__}"
    if isinstance(holder, (types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType)):
        return f"the suspended {type(holder).__name__} {holder.__qualname__}"
    if isinstance(holder, types.FrameType):
        return f"a frame of {holder.f_code.co_name}"
    return f"{holder.__module__}.{holder.__qualname__}" if isinstance(holder, type) else ""


def _attribute(holder: Any, held: Any) -> str:
    kind = type(holder)
    variables = getattr(holder, "__dict__", None)
    name = ""
    if isinstance(variables, dict) and variables is not held:
        name = next((f".{key}" for key, value in list(variables.items()) if value is held), "")
    return f"{kind.__module__}.{kind.__qualname__}{name}"


def _inside(holder: Any, held: Any, parent: Any) -> str:
    """Return how ``held`` is reached from a container without a name, which ``parent`` holds."""
    if isinstance(holder, types.CellType) or isinstance(parent, types.FunctionType):
        return ""
    if not isinstance(holder, dict):
        return "[...]"
    key = _key_of(holder, held)
    if isinstance(parent, type) or (
        not _is_container(parent) and getattr(parent, "__dict__", None) is holder
    ):
        return f".{key}"
    return f"[{key!r}]"


def _is_container(one: Any) -> bool:
    return isinstance(one, (dict, list, tuple, set, frozenset, types.CellType, collections.deque))


def _key_of(holder: dict[Any, Any], held: Any) -> Any:
    for key, value in list(holder.items()):
        if value is held:
            return key if isinstance(key, (str, int)) else "..."
    return "..."
