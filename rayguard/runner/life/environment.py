"""What a command finds in its environment: rayguard's mark, its plugin for Ray, its hooks of frameworks.

A Ray whose nodes have no rayguard does not start under the plugin, so that it is switched on only where the
command's Python is provably this one.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rayguard.cluster.plugin.worker_hook import DRIVER_HOOK, PLUGIN, PREPARE
from rayguard.frameworks import startup
from rayguard.runner.life.leftovers import mark_of_run

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rayguard.dialects.dialect import Command

PLUGINS = "RAY_RUNTIME_ENV_PLUGINS"
_OURS = "rayguard."
_ON = {
    PLUGINS: '[{"class": "rayguard.cluster.plugin.RayguardPlugin"}]',
    DRIVER_HOOK: PREPARE,
    PLUGIN: "{}",
}
_SHELLS = frozenset({"bash", "sh", "dash", "zsh", "env", "nohup", "nice", "time"})


def environment_of(command: Command, *, plugin: bool, hooks: bool) -> tuple[dict[str, str], str]:
    """Return the environment of ``command``, and why the plugin is off in it ('' where it is on).

    ``hooks``: those of frameworks too, which wait for their modules to be imported.
    """
    environment = {**os.environ, **mark_of_run(), **command.environment}
    why = _why_off(command, environment) if plugin else "--no-plugin"
    if not why:
        environment = {**_ON, **environment}
    if plugin and hooks:
        environment |= startup.environment(environment)
    return environment, why


def _why_off(command: Command, environment: Mapping[str, str]) -> str:
    if importlib.util.find_spec("ray") is None:
        return "Ray is not installed"
    others = [name for name in (PLUGINS, DRIVER_HOOK) if _OURS not in environment.get(name, _OURS)]
    if others:
        return f"{' and '.join(others)} are set to something else: docs/cluster.md says how to have both"
    program = shutil.which(command.words[0], path=environment.get("PATH"))
    if program is not None and Path(program).name in _SHELLS:
        program = shutil.which("python3", path=environment.get("PATH"))
    if program is None or not _is_here(Path(program), command.folder):
        return f"{command.words[0]} may run another Python than this one, which may have no rayguard"
    return ""


def _is_here(program: Path, folder: Path) -> bool:
    """Say whether a program lies beside this Python: its own, or one that was installed with it."""
    return (folder / program).absolute().parent == Path(sys.executable).absolute().parent
