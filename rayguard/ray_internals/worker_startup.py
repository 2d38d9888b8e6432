"""A worker of Ray as it loads what it is to run: its user's setup hook, actors' classes, tasks' functions.

Standard library only, as long as nothing is asked: this lies on the way of each worker's start.
"""

from __future__ import annotations

import functools
import pkgutil
import traceback
from typing import TYPE_CHECKING, Any

from rayguard.harmless import harmless
from rayguard.ray_internals.capability import Capability

if TYPE_CHECKING:
    from collections.abc import Callable


_MANAGER = "ray._private.function_manager:FunctionActorManager"
_LOADS = {
    "gcs": f"{_MANAGER}._load_actor_class_from_gcs",
    "local": f"{_MANAGER}._load_actor_class_from_local",
}

users_hook = Capability(
    "a user's setup hook through Ray",
    "rayguard runs it by its path; workers with one that is given as a function run without rayguard",
    {"run": "ray._private.runtime_env.setup_hook:load_and_execute_setup_hook"},
)
classes = Capability(
    "watch over actors",
    "actors of classes that nobody guards by hand are neither guarded nor watched",
    _LOADS,
)
functions = Capability(
    "watch over tasks",
    "the plugin does not watch tasks",
    {
        "get": f"{_MANAGER}.get_execution_info",
        "is_method": "ray._raylet:PythonFunctionDescriptor.is_actor_method",
        "id": "ray._raylet:PythonFunctionDescriptor.function_id",
        "replace": "ray._private.function_manager:FunctionExecutionInfo._replace",
    },
    parts=("_function_execution_info",),
)


def can_run(hook: str) -> bool:
    """Say whether a user's setup hook would run under ours: by its path always, else in Ray's own way."""
    return all(part.isidentifier() for part in hook.split(".")) or users_hook.usable()


def run_users_hook(path: str) -> None:
    """Run the setup hook that the user has asked for, as Ray would, also where Ray's own way has moved.

    Raises:
        RuntimeError: It failed, or cannot be loaded: Ray ends the worker.
    """
    error = users_hook.found()["run"](path) if users_hook.usable() else _run_by_path(path)
    if error is not None:
        raise RuntimeError(error)


def see_classes(seen: Callable[[type], None]) -> bool:
    """Have ``seen`` called with each actor's class as Ray loads it: later, Ray has taken its methods out.

    ``seen`` harms nobody. Says whether it is.
    """

    def wrap(load: Callable[..., type | None]) -> Callable[..., type | None]:
        @functools.wraps(load)
        def loaded(*args: object, **kwargs: object) -> type | None:
            found = load(*args, **kwargs)
            if found is not None:
                with harmless("watch"):
                    seen(found)
            return found

        return loaded

    return classes.replace(dict.fromkeys(_LOADS, wrap))


def replace_functions(other: Callable[[Callable[..., object]], Callable[..., object]]) -> bool:
    """Have each task's function replaced by ``other`` of it as Ray fetches it, once in a process."""

    def wrap(get: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(get)
        def get_execution_info(self: object, job_id: object, descriptor: Any) -> Any:
            found = get(self, job_id, descriptor)
            with harmless("watch"):
                if not functions.why_off and not descriptor.is_actor_method():
                    function = other(found.function)
                    if function is not found.function:
                        known = functions.part(self, "_function_execution_info")
                        found = found._replace(function=function)
                        known[descriptor.function_id] = found
            return found

        return get_execution_info

    return functions.replace({"get": wrap})


def _run_by_path(path: str) -> str | None:
    try:
        pkgutil.resolve_name(path)()
    except Exception:  # noqa: BLE001 - the user's: Ray shows it, and ends the worker
        return f"Failed to execute the setup hook method, {path}:\n{traceback.format_exc()}"
    return None
