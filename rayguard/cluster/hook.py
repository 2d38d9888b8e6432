"""What a worker of a job under the plugin does first: have its classes and functions watched as they load.

Ray runs ``setup`` in each worker before any task or actor. It lies on the way of every start, so it loads the
standard library only, and of rayguard what does the same; whatever is heavy comes later, aside (``watched``,
``arriving``). A worker starts whatever happens here: each step is run for itself, and its errors are logged.
"""

from __future__ import annotations

import functools
import json
import os
from typing import Any

from rayguard.cluster.unharmed import unharmed

PLUGIN = "RAYGUARD_PLUGIN"  # the configuration, as JSON
HOOK = "__RAY_WORKER_PROCESS_SETUP_HOOK_ENV_VAR"  # Ray's name; without an end that says so
USERS_HOOK = "RAYGUARD_USERS_HOOK"
DRIVER_HOOK = "RAY_RUNTIME_ENV_HOOK"
USERS_DRIVER_HOOK = "RAYGUARD_USERS_DRIVER_HOOK"
SETUP = "rayguard.cluster.hook.setup"
PREPARE = "rayguard.cluster.driver.prepare"


def setup() -> None:
    """Begin to watch this worker; then run the user's own hook, whose errors are Ray's to judge.

    Raises:
        RuntimeError: The user's own hook failed: Ray ends the worker, as it would have without us.
    """
    theirs = _restored()
    with unharmed("hook"):
        config = json.loads(os.environ[PLUGIN])
        for step in (_watch_classes, _watch_functions, _set_options):
            with unharmed(f"hook {step.__name__.strip('_')}"):
                step(config)
    if theirs:
        from ray._private.runtime_env.setup_hook import load_and_execute_setup_hook  # noqa: PLC0415

        error = load_and_execute_setup_hook(theirs)
        if error is not None:
            raise RuntimeError(error)


def _restored() -> str:
    """Put the user's hook back where ours stood, for what this worker starts; return it."""
    theirs = os.environ.pop(USERS_HOOK, "")
    if theirs:
        os.environ[HOOK] = theirs
    else:
        os.environ.pop(HOOK, None)
    return theirs


def _watch_classes(config: dict[str, Any]) -> None:
    """Have each actor class looked at as it is loaded: later, Ray has taken its methods out of it."""
    from ray._private.function_manager import FunctionActorManager  # noqa: PLC0415 - a worker has it

    from rayguard.cluster import watched  # noqa: PLC0415 - what fails there must fail in this step

    watched.config = config
    for name in ("_load_actor_class_from_gcs", "_load_actor_class_from_local"):
        setattr(FunctionActorManager, name, _seen(getattr(FunctionActorManager, name), watched.enlist))


def _seen(load: Any, enlist: Any) -> Any:
    @functools.wraps(load)
    def loaded(*args: Any, **kwargs: Any) -> Any:
        found = load(*args, **kwargs)
        if found is not None:
            with unharmed("watch"):
                enlist(found)
        return found

    return loaded


def _watch_functions(config: dict[str, Any]) -> None:
    """Have each task's function replaced by a watched one as Ray fetches it, once in a process."""
    if not config["watch"]:
        return
    from ray._private.function_manager import FunctionActorManager  # noqa: PLC0415 - a worker has it

    from rayguard.cluster import watched  # noqa: PLC0415 - as above

    get = FunctionActorManager.get_execution_info

    @functools.wraps(get)
    def get_execution_info(self: Any, job_id: Any, descriptor: Any) -> Any:
        found = get(self, job_id, descriptor)
        with unharmed("watch"):
            if not descriptor.is_actor_method():
                function = watched.watch_function(found.function)
                if function is not found.function:
                    found = found._replace(function=function)
                    self._function_execution_info[descriptor.function_id] = found
        return found

    FunctionActorManager.get_execution_info = get_execution_info


def _set_options(config: dict[str, Any]) -> None:
    """Have named actors that this worker creates made restartable."""
    from rayguard.cluster import creation  # noqa: PLC0415 - as above

    creation.install(config["guard"])
