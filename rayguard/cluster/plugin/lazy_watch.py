"""Classes and functions of users who wrote no word of rayguard: watched from the moment they load.

Two phases. At first a call only stands in a list while it runs (``pending_calls``), which costs a worker's
start next to nothing; an error, or a second in which nobody waits, then loads the guard (``activation``), and
from there on the very wrappers of ``@rayguard.guard`` do the work, under a mark that says *watching*. Loads
the standard library only, since every worker of a job loads this one.
"""

from __future__ import annotations

import inspect
import threading
from types import FunctionType
from typing import Any

from rayguard.actors.methods import MARK, is_guarded, public_methods
from rayguard.cluster.plugin import pending_calls
from rayguard.cluster.plugin.pending_calls import Late, dispatching
from rayguard.harmless import harmless
from rayguard.ray_internals.module_names import MACHINERY, user_class

_NOT_USERS = ("rayguard.", *MACHINERY)
_AFTER_S = 1.0  # the first call has been answered by then, where it is a short one
_LOOKS, _LOOK_S = 250, 0.02  # for whose process this is: soon, but not where the machine is busy

config: dict[str, Any] = {}
waiting: list[Late] = []  # not under the guard's own wrappers yet
arrived = False
early_classes: set[type] = set()  # put under watch before the guard came
_loading: threading.Thread | None = None


def enlist(cls: type) -> None:
    """Put an actor's class, as Ray loaded it, under watch or guard; one that is guarded stays as it is."""
    plain = user_class(cls)
    if f"{cls.__module__}.".startswith(_NOT_USERS):
        return
    start_loading(of_actor=True)  # also where its user guards it: for its numbers, and an agent on its node
    if getattr(cls, MARK, None) is not None:
        return
    named = config["guard"].get(f"{cls.__module__}:{plain.__qualname__}")
    if named is not None:
        with harmless("guard"):
            pending_calls.load_guard().guard_class(cls, named)
    if getattr(cls, MARK, None) is None and config["watch"]:
        watch_class(cls)


def watch_class(cls: type) -> None:
    """Put ``cls`` under watch. One that streams from async methods has the guard's own wrappers at once."""
    methods = dict(public_methods(cls))
    if any(inspect.isasyncgenfunction(method) for method in methods.values()):
        pending_calls.load_guard().guard_class(cls, None)
        return
    early_classes.add(cls)
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
    start_loading()
    return watched


def _settle() -> None:
    """Let what came after the guard have its wrappers now."""
    if arrived:
        pending_calls.load_guard().settle()


def start_loading(*, of_actor: bool = False) -> None:
    """Have what is heavy done in a thread, once in a process, after the first call had its second."""
    global _loading  # noqa: PLW0603 - one thread per process
    if _loading is None:
        _loading = threading.Thread(
            target=_load_later, args=(of_actor,), name="rayguard-arriving", daemon=True
        )
        _loading.start()


def _load_later(of_actor: bool) -> None:  # noqa: FBT001 - a thread's argument
    if not (of_actor and _begun_anew()):
        threading.Event().wait(_AFTER_S)
    with harmless("watch"):
        pending_calls.load_guard().everything()


def _begun_anew() -> bool:
    """Say whether Ray has restarted the actor that lives here: what it lost is told before it dies again.

    A class is loaded a moment before Ray says whose process this is.
    """
    with harmless("watch"):
        from rayguard.ray_internals.gcs_tables import actor_row  # noqa: PLC0415 - aside
        from rayguard.ray_internals.worker import connected_ray, this_actor, this_actor_id  # noqa: PLC0415

        for _ in range(_LOOKS):
            if connected_ray() is not None and this_actor() is not None:
                row = actor_row(this_actor_id())  # Ray's own property prints a warning of Ray's own
                return row is not None and row.lives > 0
            threading.Event().wait(_LOOK_S)
    return False
