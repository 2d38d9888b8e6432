"""verl's ``CheckpointEngineManager``: weights are pushed to the replicas that are there.

It calls every replica it was given, so one that is lost would end the job at the next update. Where trainer
and rollouts have GPUs of their own, the group over which weights go is made anew for each update from the
replicas that the manager has: a lost one is taken from its list, by its own ``remove_replicas``. Where they
share them the workers of the trainer push, and nothing is changed.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
from typing import TYPE_CHECKING, Any

from rayguard.frameworks.change_once import change_once
from rayguard.frameworks.verl_rollouts.lost_servers import NAIVE
from rayguard.harmless import harmless

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

MODULE = "verl.checkpoint_engine.base"  # after whose import ``attach`` is to be called
_ATTACHED = "__rayguard_replicas__"
_ASK_S = 5.0
_log = logging.getLogger("rayguard")


def attach(module: ModuleType, ask_s: float = _ASK_S) -> bool:
    """Have lost replicas left out of weight updates; say whether they are. ``ask_s``: for who is lost."""
    return change_once(
        module,
        _ATTACHED,
        lambda: _change(module, ask_s),
        unknown=_unknown,
        framework="verl",
        otherwise="lost replicas are not left out of weight updates",
    )


def _change(module: Any, ask_s: float) -> None:
    manager_class: Any = module.CheckpointEngineManager
    update = inspect.unwrap(manager_class.update_weights)

    @functools.wraps(update)
    async def update_weights(self: Any, *args: object, **kwargs: object) -> object:
        with harmless("rollout"):
            await leave_out_lost(self, ask_s)
        return await update(self, *args, **kwargs)

    manager_class.update_weights = module.auto_await(update_weights)


def _unknown(module: ModuleType) -> str:
    manager_class = getattr(module, "CheckpointEngineManager", None)
    if not callable(getattr(module, "auto_await", None)):
        return "auto_await"
    if not inspect.isclass(manager_class):
        return "CheckpointEngineManager"
    update = inspect.unwrap(getattr(manager_class, "update_weights", _unknown))
    parameters = tuple(inspect.signature(update).parameters)[:2]
    if not inspect.iscoroutinefunction(update) or parameters != ("self", "global_steps"):
        return "CheckpointEngineManager.update_weights"
    if not {"backend", "replicas"} <= set(update.__code__.co_names):
        return "CheckpointEngineManager.update_weights"
    remove = getattr(manager_class, "remove_replicas", None)
    if not callable(remove) or tuple(inspect.signature(remove).parameters) != ("self", "replicas"):
        return "CheckpointEngineManager.remove_replicas"
    return ""


async def leave_out_lost(manager: Any, ask_s: float) -> None:
    """Take the lost ones from a manager's replicas; not the last one, whose error is the caller's."""
    replicas = list(manager.replicas)
    if manager.backend == NAIVE or not replicas:
        return
    found = await asyncio.gather(*(_is_lost(one, ask_s) for one in replicas))
    lost = [replica for replica, is_lost in zip(replicas, found, strict=True) if is_lost]
    if not lost or len(lost) == len(replicas):
        return
    manager.remove_replicas(lost)
    _log.warning(
        "rayguard: %d of %d replicas are lost (%s): weights go to the others from now on",
        len(lost),
        len(replicas),
        ", ".join(str(getattr(one, "replica_rank", "?")) for one in lost),
    )


async def _is_lost(replica: Any, ask_s: float) -> bool:
    """Say whether an actor of it is dead, or its engine; one that is busy says nothing."""
    from rayguard.frameworks.verl_rollouts import in_actor  # noqa: PLC0415 - where verl pushes weights, Ray is
    from rayguard.ray_internals.actor_classes import ask_ready, run_in_actor  # noqa: PLC0415 - as above

    asked: Sequence[Any] = [
        *(run_in_actor(one, in_actor.look) for one in replica.servers),
        *(ask_ready(one) for one in replica.workers),
    ]
    if not asked:
        return False
    answered, _ = await asyncio.wait([asyncio.wrap_future(one.future()) for one in asked], timeout=ask_s)
    return any(_says_lost(one) for one in answered)


def _says_lost(answer: asyncio.Future[Any]) -> bool:
    from ray.exceptions import ActorDiedError  # noqa: PLC0415 - as above

    error = answer.exception()
    if error is not None:
        return isinstance(error, ActorDiedError)
    return bool(getattr(answer.result(), "engine_dead", False))
