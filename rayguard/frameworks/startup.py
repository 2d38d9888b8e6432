"""Switches the hooks of frameworks on, in this process and in what a command starts.

A command that is started with ``environment`` has each Python of it come by ``on_path/sitecustomize.py``, and
that asks ``attach_if_asked``: functions then wait for the modules of frameworks, and most processes import
none of them. Loads the standard library only.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from rayguard.frameworks.after_import import after_import, loaded_late

if TYPE_CHECKING:
    from collections.abc import Mapping

SWITCH = "RAYGUARD_FRAMEWORKS"  # "on", or anything that is none of these:
_OFF = frozenset({"", "0", "off", "no", "none"})
ON_PATH = Path(__file__).parent / "on_path"
# A module of a framework -> what is done once it has been imported, as "module:function".
HOOKS = {
    "transformers.trainer": "rayguard.frameworks.trl.every_trainer:add_to_every_trainer",
    "trl.generation.vllm_client": "rayguard.frameworks.trl.client:guard_module",
    "trl.extras.vllm_client": "rayguard.frameworks.trl.client:guard_module",  # up to TRL 0.2x
    "swift.arguments.deploy_args": "rayguard.frameworks.swift.told_port:keep",
    "swift.callbacks.mapping": "rayguard.frameworks.swift.callback:register",
    "swift.rlhf_trainers.vllm_client": "rayguard.frameworks.swift.client:guard_module",
    "swift.trainers.patcher": "rayguard.frameworks.trl.every_trainer:add_anew",
}


def environment(of: Mapping[str, str]) -> dict[str, str]:
    """Return what to add to the environment ``of`` a command so that its Pythons have the hooks.

    Nothing where its user has switched them off (``RAYGUARD_FRAMEWORKS=off``).
    """
    if SWITCH in of and of[SWITCH].strip().lower() in _OFF:
        return {}
    # An empty piece would be the current folder.
    before = [
        place for place in of.get("PYTHONPATH", "").split(os.pathsep) if place and place != str(ON_PATH)
    ]
    return {"PYTHONPATH": os.pathsep.join([str(ON_PATH), *before]), SWITCH: of.get(SWITCH) or "on"}


def attach_if_asked() -> None:
    """Attach where the environment says so. Never raises for what goes wrong in a hook."""
    if os.environ.get(SWITCH, "").strip().lower() not in _OFF:
        attach()


def attach() -> None:
    """Have each hook run after its framework's module has been imported, now or later."""
    for name, hook in HOOKS.items():
        after_import(name, loaded_late(hook))
