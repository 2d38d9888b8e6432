"""Ray's runtime-env plugin: ``runtime_env={"rayguard": {...}}`` on a job, an actor or a task.

Runs in the runtime-env agent of each node, which loads it by
``RAY_RUNTIME_ENV_PLUGINS='[{"class": "rayguard.cluster.plugin.RayguardPlugin"}]'`` in the environment of
whoever starts the node. It only sets environment variables of the worker to be started, and has it
forked where modules are to be preloaded; where rayguard is off or cannot be had, nothing. What can be asked
for is ``config``, what a worker does with it ``worker_hook``.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import TYPE_CHECKING, Any, Protocol

from rayguard.cluster.plugin.worker_hook import (
    DRIVER_HOOK,
    HOOK,
    PLUGIN,
    PREPARE,
    SETUP,
    USERS_DRIVER_HOOK,
    USERS_HOOK,
)
from rayguard.errors import ConfigError
from rayguard.harmless import harmless
from rayguard.preloading.runtime_env import preloads_later, python_of, starting
from rayguard.ray_internals.runtime_env_plugin import plugin
from rayguard.ray_internals.worker_startup import can_run

if TYPE_CHECKING:
    import logging
    from collections.abc import Mapping

    class Context(Protocol):
        """Of Ray's ``RuntimeEnvContext``, what is asked here."""

        py_executable: str
        env_vars: dict[str, str]


_KEY = "rayguard"
_TRIAL_S = 60.0
_TRIAL = "import rayguard.cluster.plugin.worker_hook"


@plugin(_KEY)
class RayguardPlugin:
    """Puts workers under watch and named classes under guard. Its own errors leave a worker as it was."""

    priority = 90  # after Ray's own: which Python it will be, and with which path, is known then

    def __init__(self) -> None:
        self._usable: dict[tuple[str, str], bool] = {}

    @staticmethod
    def validate(runtime_env_dict: Mapping[str, object]) -> None:
        """Refuse what was asked for wrongly.

        Raises:
            ConfigError: With one sentence for each mistake; to the user it is a ``RuntimeEnvSetupError``.
        """
        _asked(runtime_env_dict)

    async def create(
        self, uri: str | None, runtime_env: object, context: Context, logger: logging.Logger
    ) -> float:
        """Find out, once for each Python and path, whether a worker could load rayguard there; in bytes: 0.

        A worker whose hook cannot be loaded would be ended by Ray: better one without us.
        """
        del uri, runtime_env, logger
        with harmless("plugin"):
            place = _place(context)
            if place not in self._usable:
                self._usable[place] = place == (sys.executable, "") or await _loads(context)
        return 0.0

    def modify_context(
        self,
        uris: list[str],
        runtime_env: Mapping[str, object],
        context: Context,
        logger: logging.Logger,
    ) -> None:
        """Set the variables by which a worker finds out that it is watched."""
        del uris
        with harmless("plugin"):
            config = _asked(runtime_env)
            if config is None:
                return
            if not self._usable.get(_place(context)):
                logger.warning("rayguard is not installed for %s: its workers run without", _place(context))
                return
            found = variables(config, context.env_vars, os.environ)
            if can_run(found.get(USERS_HOOK, SETUP)):
                context.env_vars.update(found)
                if preloads_later(context.py_executable) and config["preload"]:  # of a pool, by itself
                    context.py_executable = sys.executable
                ours = sys.platform == "linux" and len(context.py_executable.split()) == 1
                if config["preload"] and ours:
                    context.py_executable = starting(context.py_executable, config["preload"])


def variables(
    config: dict[str, Any], given: Mapping[str, str], inherited: Mapping[str, str]
) -> dict[str, str]:
    """Return what a worker's environment needs besides ``given``; hooks that stand there are kept for it."""
    found = {PLUGIN: json.dumps(config, separators=(",", ":")), HOOK: SETUP, DRIVER_HOOK: PREPARE}
    for variable, kept, ours in ((HOOK, USERS_HOOK, SETUP), (DRIVER_HOOK, USERS_DRIVER_HOOK, PREPARE)):
        theirs = given.get(variable) or inherited.get(variable)
        if theirs and theirs != ours:
            found[kept] = theirs
    if config["home"] is not None:
        found["RAYGUARD_HOME"] = config["home"]
    if config["metrics_port"] is not None:
        found["RAYGUARD_METRICS_PORT"] = str(config["metrics_port"])
    return found


def _asked(runtime_env: Mapping[str, object]) -> dict[str, Any] | None:
    wrong: ConfigError | None = None
    with harmless("plugin"):
        from rayguard.cluster.plugin.config import asked  # noqa: PLC0415 - the agent must start without it

        try:
            return asked(runtime_env.get(_KEY))
        except ConfigError as error:
            wrong = error
    if wrong is not None:
        raise wrong from None  # Ray shows the user the whole traceback: pydantic's half of it says it worse
    return None


def _place(context: Context) -> tuple[str, str]:
    return str(context.py_executable), str(context.env_vars.get("PYTHONPATH", ""))


async def _loads(context: Context) -> bool:
    """Try it out; ``py_executable`` is a piece of shell, as it is to Ray. Nothing that forks is started."""
    environment = {**os.environ, **context.env_vars}
    trial = await asyncio.create_subprocess_exec(
        "bash",
        "-c",
        f"exec {python_of(context.py_executable)} -c '{_TRIAL}'",
        env=environment,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        return await asyncio.wait_for(trial.wait(), _TRIAL_S) == 0
    except asyncio.TimeoutError:
        trial.kill()
        return False
