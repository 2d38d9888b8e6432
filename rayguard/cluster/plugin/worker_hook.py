"""What a worker of a job under the plugin does first: have its classes and functions watched as they load.

Ray runs ``setup`` in each worker before any task or actor. It lies on the way of every start, so it loads the
standard library only, and of rayguard what does the same; whatever is heavy comes later (``activation``). A
worker starts whatever happens here: each step is run for itself, and its errors are logged.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from rayguard.harmless import harmless

if TYPE_CHECKING:
    from rayguard.cluster.plugin.pending_calls import Guard

PLUGIN = "RAYGUARD_PLUGIN"  # the configuration, as JSON
HOOK = "__RAY_WORKER_PROCESS_SETUP_HOOK_ENV_VAR"  # Ray's name; without an end that says so
USERS_HOOK = "RAYGUARD_USERS_HOOK"
DRIVER_HOOK = "RAY_RUNTIME_ENV_HOOK"
USERS_DRIVER_HOOK = "RAYGUARD_USERS_DRIVER_HOOK"
SETUP = "rayguard.cluster.plugin.worker_hook.setup"
PREPARE = "rayguard.cluster.driver.prepare"


def setup() -> None:
    """Begin to watch this worker; then run the user's own hook, whose errors are Ray's to judge.

    Raises:
        RuntimeError: The user's own hook failed: Ray ends the worker, as it would have without us.
    """
    theirs = _restored()
    with harmless("hook"):
        config = json.loads(os.environ[PLUGIN])
        for step in (_watch_classes, _watch_functions, _set_options, follow_frameworks):
            with harmless(f"hook {step.__name__.strip('_')}"):
                step(config)
    if theirs:
        from rayguard.ray_internals.worker_startup import run_users_hook  # noqa: PLC0415 - as below

        run_users_hook(theirs)


def _restored() -> str:
    """Put the user's hook back where ours stood, for what this worker starts; return it."""
    theirs = os.environ.pop(USERS_HOOK, "")
    if theirs:
        os.environ[HOOK] = theirs
    else:
        os.environ.pop(HOOK, None)
    return theirs


def _watch_classes(config: dict[str, Any]) -> None:
    """Have each actor class looked at as it is loaded."""
    # What fails in an import must fail in its step.
    from rayguard.cluster.plugin import lazy_watch, pending_calls  # noqa: PLC0415
    from rayguard.ray_internals import worker_startup  # noqa: PLC0415

    lazy_watch.config, pending_calls.load_guard = config, _guard
    worker_startup.see_classes(lazy_watch.enlist)


def _guard() -> Guard:
    """Load what is heavy: this module is above it, those that need it are below."""
    from rayguard.cluster.plugin import activation  # noqa: PLC0415 - only once it is needed

    return activation


def _watch_functions(config: dict[str, Any]) -> None:
    """Have each task's function replaced by a watched one as Ray fetches it, once in a process."""
    if not config["watch"]:
        return
    from rayguard.cluster.plugin import lazy_watch  # noqa: PLC0415 - as above
    from rayguard.ray_internals import worker_startup  # noqa: PLC0415

    worker_startup.replace_functions(lazy_watch.watch_function)


def _set_options(config: dict[str, Any]) -> None:
    """Have named actors that this worker creates made restartable."""
    from rayguard.cluster.plugin import named_restart_options  # noqa: PLC0415 - as above

    named_restart_options.install(config["guard"])


def follow_frameworks(config: dict[str, Any]) -> None:
    """Have what rayguard does for a framework follow the import of that framework, also in drivers."""
    if not config.get("frameworks"):  # an agent of an older version does not say
        return
    from rayguard.frameworks import hooks  # noqa: PLC0415 - as above
    from rayguard.frameworks.after_import import after_import  # noqa: PLC0415 - as above

    hooks.watch_imports(after_import, new_replicas=bool(config.get("new_replicas")))
