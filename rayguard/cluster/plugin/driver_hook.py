"""Drivers: what is asked for is checked before the job begins, and named actors are created restartable.

Ray calls ``prepare`` in ``ray.init`` where ``RAY_RUNTIME_ENV_HOOK=rayguard.cluster.driver.prepare`` is set.
The plugin sets it for what a worker of the job starts: the driver of ``ray job submit`` among others.
"""

from __future__ import annotations

import copy
import json
import os
import pkgutil
from typing import Any

from rayguard.cluster.plugin import named_restart_options
from rayguard.cluster.plugin.config import KEY, asked
from rayguard.cluster.plugin.worker_hook import PLUGIN, USERS_DRIVER_HOOK, follow_frameworks
from rayguard.errors import ConfigError
from rayguard.harmless import harmless
from rayguard.tried import PYTHON, RAY, warn_untried


def prepare(runtime_env: Any) -> Any:
    """Return the job's ``runtime_env``, after the user's own hook.

    With ``RAYGUARD_PLUGIN`` (JSON) in the environment, jobs that say nothing of rayguard have that.

    Raises:
        ConfigError: What is asked for cannot be: one sentence for each mistake.
        Exception: Whatever the user's own hook raises.
    """
    theirs = os.environ.get(USERS_DRIVER_HOOK)
    if theirs:
        runtime_env = pkgutil.resolve_name(theirs)(runtime_env)
    default = os.environ.get(PLUGIN)
    if default is not None and KEY not in (runtime_env or {}):
        runtime_env = copy.copy(runtime_env) if runtime_env else {}
        runtime_env[KEY] = _default(default)
    config = asked((runtime_env or {}).get(KEY))
    named = {} if config is None else config["guard"]
    with harmless("tried versions"):
        warn_untried(PYTHON, RAY)
    with harmless("options"):
        named_restart_options.install(named)
    with harmless("frameworks"):
        if config is not None:
            follow_frameworks(config)
    with harmless("named classes"):
        from rayguard.cluster.plugin import unmatched_paths  # noqa: PLC0415 - what fails in an import fails here

        unmatched_paths.tell_at_end(named)
    return runtime_env


def _default(said: str) -> Any:
    try:
        return json.loads(said)
    except ValueError as error:
        raise ConfigError(f'{PLUGIN} is {said!r}, which is no JSON: {error}. "{{}}" watches all') from error
