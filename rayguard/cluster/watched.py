"""Classes and functions of users who wrote no word of rayguard: watched from the moment they load.

Two phases. At first a call only stands in a list while it runs (``early``), which costs a worker's start next
to nothing; an error, or a second in which nobody waits, then loads the guard (``arriving``), and from there
on the very wrappers of ``@rayguard.guard`` do the work, under a mark that says *watching*. Loads the standard
library only, since every worker of a job loads this one.
"""

from __future__ import annotations

import inspect
import threading
from types import FunctionType
from typing import Any

from rayguard.actors.methods import MARK, is_guarded, public_methods
from rayguard.cluster.early import Late, dispatching
from rayguard.cluster.unharmed import unharmed

# Ray's machinery and our own. Libraries that run users' code (Train, Data, RLlib) are watched.
_NOT_USERS = (
    "rayguard.",
    "ray._private.",
    "ray.dashboard.",
    "ray.serve.",
    "ray.util.client.",
    "ray.autoscaler.",
)
_AFTER_S = 1.0  # the first call has been answered by then, where it is a short one

config: dict[str, Any] = {}
waiting: list[Late] = []  # not under the guard's own wrappers yet
arrived = False
_early_classes: set[type] = set()
_aside: threading.Thread | None = None


def enlist(cls: type) -> None:
    """Put an actor's class, as Ray loaded it, under watch or guard; one that is guarded stays as it is."""
    plain = getattr(cls, "__ray_actor_class__", cls)
    if f"{cls.__module__}.".startswith(_NOT_USERS):
        return
    start_aside()  # also where its user guards it: for its numbers, and an agent on its node
    if getattr(cls, MARK, None) is not None:
        return
    named = config["guard"].get(f"{cls.__module__}:{plain.__qualname__}")
    if named is not None:
        with unharmed("guard"):
            from rayguard.cluster import arriving  # noqa: PLC0415 - loads the guard

            arriving.guard_class(cls, named)
    if getattr(cls, MARK, None) is None and config["watch"]:
        watch_class(cls)


def is_early(cls: type) -> bool:
    """Say whether ``cls`` was put under watch before the guard came."""
    return cls in _early_classes


def watch_class(cls: type) -> None:
    """Put ``cls`` under watch. One that streams from async methods has the guard's own wrappers at once."""
    methods = dict(public_methods(cls))
    if any(inspect.isasyncgenfunction(method) for method in methods.values()):
        from rayguard.cluster import arriving  # noqa: PLC0415 - loads the guard

        arriving.guard_class(cls, None)
        return
    _early_classes.add(cls)
    for name, method in methods.items():
        late = Late(name, method, cls)
        setattr(cls, name, dispatching(late))
        waiting.append(late)
    _settle()


def watch_function(function: Any) -> Any:
    """Return a task's function under watch, or the one it is where there is nothing to be done."""
    if not isinstance(function, FunctionType) or is_guarded(function):
        return function
    if f"{function.__module__}.".startswith(_NOT_USERS) or inspect.iscoroutinefunction(function):
        return function
    late = Late(function.__name__, function)
    watched = dispatching(late)
    waiting.append(late)
    _settle()
    start_aside()
    return watched


def _settle() -> None:
    """Let what came after the guard have its wrappers now."""
    if arrived:
        from rayguard.cluster import arriving  # noqa: PLC0415 - it is loaded

        arriving.settle()


def start_aside() -> None:
    """Have what is heavy done in a thread, once in a process, after the first call had its second."""
    global _aside  # noqa: PLW0603 - one thread per process
    if _aside is None:
        _aside = threading.Thread(target=_go_aside, name="rayguard-arriving", daemon=True)
        _aside.start()


def _go_aside() -> None:
    threading.Event().wait(_AFTER_S)
    with unharmed("watch"):
        from rayguard.cluster import arriving  # noqa: PLC0415 - loads the guard

        arriving.everything()
