"""Drivers: what is asked for is checked before the job begins, and named actors are created restartable.

Ray calls ``prepare`` in ``ray.init`` where ``RAY_RUNTIME_ENV_HOOK=rayguard.cluster.driver.prepare`` is set.
The plugin sets it for what a worker of the job starts: the driver of ``ray job submit`` among others.
"""

from __future__ import annotations

import copy
import json
import os
from typing import Any

from rayguard.cluster import creation
from rayguard.cluster.hook import PLUGIN, USERS_DRIVER_HOOK
from rayguard.cluster.plugin_config import KEY, asked
from rayguard.cluster.unharmed import unharmed
from rayguard.errors import ConfigError


def prepare(runtime_env: Any) -> Any:
    """Return the job's ``runtime_env``, after the user's own hook.

    With ``RAYGUARD_PLUGIN`` (JSON) in the environment, jobs that say nothing of rayguard have that.

    Raises:
        ConfigError: What is asked for cannot be: one sentence for each mistake.
        Exception: Whatever the user's own hook raises.
    """
    theirs = os.environ.get(USERS_DRIVER_HOOK)
    if theirs:
        from ray._common.utils import load_class  # noqa: PLC0415 - as Ray loads this one

        runtime_env = load_class(theirs)(runtime_env)
    default = os.environ.get(PLUGIN)
    if default is not None and KEY not in (runtime_env or {}):
        runtime_env = copy.copy(runtime_env) if runtime_env else {}
        runtime_env[KEY] = _default(default)
    config = asked((runtime_env or {}).get(KEY))
    with unharmed("options"):
        creation.install({} if config is None else config["guard"])
    return runtime_env


def _default(said: str) -> Any:
    try:
        return json.loads(said)
    except ValueError as error:
        raise ConfigError(f'{PLUGIN} is {said!r}, which is no JSON: {error}. "{{}}" watches all') from error
