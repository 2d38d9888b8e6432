"""Which hook follows the import of which module of a framework that trains on Ray.

Standard library only, until such a module has been imported: it is loaded as each worker starts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rayguard.frameworks.after_import import loaded_late

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

_BATCHES = "rayguard.frameworks.easyr1_batches:attach"
_OPENRLHF = "rayguard.frameworks.openrlhf.attach:attach"
# A module of a framework -> what is done once it has been imported, as "module:function".
HOOKS = {
    "verl.single_controller.ray.base": "rayguard.frameworks.worker_groups.verl:attach",
    "verl.workers.rollout.llm_server": "rayguard.frameworks.verl_rollouts.client:attach",
    "verl.checkpoint_engine.base": "rayguard.frameworks.verl_rollouts.replicas:attach",
    "verl.single_controller.base.decorator": _BATCHES,
    "verl.protocol": _BATCHES,
    "verl.trainer.ray_trainer": _BATCHES,
    "verl.workers.fsdp_workers": _BATCHES,
    "openrlhf.trainer.ray.launcher": "rayguard.frameworks.actor_groups.openrlhf:attach",
    "openrlhf.trainer.ray.vllm_engine": _OPENRLHF,
    "openrlhf.trainer.ray.ppo_actor": _OPENRLHF,
}
# Those that stand in for them where lost replicas of verl are to be made again.
NEW_REPLICAS = {
    "verl.workers.rollout.llm_server": "rayguard.frameworks.verl_rollouts.client:attach_rebuilding",
    "verl.checkpoint_engine.base": "rayguard.frameworks.verl_rollouts.replicas:attach_rebuilding",
}


def watch_imports(
    after_import: Callable[[str, Callable[[ModuleType], object]], None], *, new_replicas: bool = False
) -> None:
    """Have the hooks attached; ``after_import`` calls a function with a module once that was imported."""
    for name, hook in {**HOOKS, **(NEW_REPLICAS if new_replicas else {})}.items():
        after_import(name, loaded_late(hook))
