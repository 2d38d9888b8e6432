"""Which hook follows the import of which module of a framework that trains on Ray.

Standard library only, until such a module has been imported: it is loaded as each worker starts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

_GROUPS = "verl.single_controller.ray.base"
_ROLLOUTS = "verl.workers.rollout.llm_server"
_REPLICAS = "verl.checkpoint_engine.base"
_BATCHES = (
    "verl.single_controller.base.decorator",
    "verl.protocol",
    "verl.trainer.ray_trainer",
    "verl.workers.fsdp_workers",
)
_OPENRLHF = ("openrlhf.trainer.ray.vllm_engine", "openrlhf.trainer.ray.ppo_actor")


def watch_imports(after_import: Callable[[str, Callable[[ModuleType], object]], None]) -> None:
    """Have the hooks attached; ``after_import`` calls a function with a module once that was imported."""
    after_import(_GROUPS, _attach_groups)
    after_import(_ROLLOUTS, _attach_rollouts)
    after_import(_REPLICAS, _attach_replicas)
    for name in _BATCHES:
        after_import(name, _attach_batches)
    for name in _OPENRLHF:
        after_import(name, _attach_openrlhf)


def _attach_groups(module: ModuleType) -> None:
    from rayguard.frameworks.worker_groups import verl  # noqa: PLC0415 - only where verl is

    verl.attach(module)


def _attach_rollouts(module: ModuleType) -> None:
    from rayguard.frameworks.verl_rollouts import client  # noqa: PLC0415 - as above

    client.attach(module)


def _attach_replicas(module: ModuleType) -> None:
    from rayguard.frameworks.verl_rollouts import replicas  # noqa: PLC0415 - as above

    replicas.attach(module)


def _attach_batches(module: ModuleType) -> None:
    from rayguard.frameworks import easyr1_batches  # noqa: PLC0415 - as above

    easyr1_batches.attach(module)


def _attach_openrlhf(module: ModuleType) -> None:
    from rayguard.frameworks.openrlhf import attach  # noqa: PLC0415 - as above

    attach.attach(module)
