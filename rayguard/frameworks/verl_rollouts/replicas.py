"""verl's ``CheckpointEngineManager``: weights are pushed to the replicas that are there.

It calls every replica it was given, so one that is lost would end the job at the next update. Where trainer
and rollouts have GPUs of their own a lost one is taken from its list, by its own ``remove_replicas``
(``weight_group``: the group over which weights go follows), and made again where that is asked for
(``rebuilds``). Where they share them the workers of the trainer push, and nothing is changed.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import weakref
from typing import TYPE_CHECKING, Any

from rayguard.faults.diagnosis import Kind
from rayguard.frameworks.change_once import change_once
from rayguard.frameworks.verl_rollouts import replica_watch, weight_group
from rayguard.frameworks.verl_rollouts.lost_servers import NAIVE
from rayguard.frameworks.verl_rollouts.rebuilds import ReplicaRebuilds
from rayguard.harmless import harmless

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType

    from rayguard.frameworks.verl_rollouts.interfaces import CheckpointEngineManager, RolloutReplica

MODULE = "verl.checkpoint_engine.base"  # after whose import ``attach`` is to be called
_ATTACHED = "__rayguard_replicas__"
_ASK_S = 5.0
_log = logging.getLogger("rayguard")
_rebuilds: weakref.WeakKeyDictionary[object, ReplicaRebuilds] = weakref.WeakKeyDictionary()


def attach(
    module: ModuleType,
    ask_s: float = _ASK_S,
    book: Callable[[], ReplicaRebuilds] | None = None,
    watch: Callable[..., object] = replica_watch.begin,
) -> bool:
    """Have lost replicas left out of weight updates; say whether they are.

    Args:
        module: verl's, as it was imported.
        ask_s: How long it is asked who is lost.
        book: Makes what has the lost replicas of one manager made again; None: they are not.
        watch: Begins to look, between updates, who of a manager's actors is dead.
    """
    attached = change_once(
        module,
        _ATTACHED,
        lambda: _change(module, ask_s, book, watch),
        unknown=_unknown,
        framework="verl",
        otherwise="lost replicas are not left out of weight updates",
    )
    if attached:
        weight_group.attach(module)
    return attached


def attach_rebuilding(module: ModuleType) -> bool:
    """Attach, and have lost replicas made again."""
    return attach(module, book=ReplicaRebuilds)


def _change(
    module: Any, ask_s: float, book: Callable[[], ReplicaRebuilds] | None, watch: Callable[..., object]
) -> None:
    manager_class: Any = module.CheckpointEngineManager
    update = inspect.unwrap(manager_class.update_weights)

    @functools.wraps(update)
    async def update_weights(self: Any, *args: object, **kwargs: object) -> object:
        if self.backend == NAIVE:
            return await update(self, *args, **kwargs)
        rebuilds = _rebuilds.get(self)
        with harmless("rollout"):
            if rebuilds is None and book is not None:
                rebuilds = _rebuilds[self] = book()
                watch(self, rebuilds.limits.watch_s, functools.partial(_look, rebuilds, ask_s))
            if rebuilds is not None:
                rebuilds.begin_update(self)
            await leave_out_lost(self, rebuilds, ask_s)
        try:
            answer = await update(self, *args, **kwargs)
        except BaseException as error:
            with harmless("rollout"):
                if rebuilds is not None:
                    rebuilds.update_failed(error)
            raise
        with harmless("rollout"):
            if rebuilds is not None:
                await rebuilds.end_update(kwargs.get("global_steps", args[0] if args else None))
        return answer

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


def _look(rebuilds: ReplicaRebuilds, ask_s: float, manager: CheckpointEngineManager) -> None:
    """Leave out who is lost, between two updates."""
    asyncio.run(leave_out_lost(manager, rebuilds, ask_s, between_updates=True))


async def leave_out_lost(
    manager: CheckpointEngineManager,
    rebuilds: ReplicaRebuilds | None,
    ask_s: float,
    *,
    between_updates: bool = False,
) -> None:
    """Take the lost ones from a manager's replicas; not the last one, whose error is the caller's."""
    replicas = list(manager.replicas)
    found = await asyncio.gather(*(_loss_of(one, ask_s) for one in replicas))
    lost = {replica: kind for replica, kind in zip(replicas, found, strict=True) if kind is not None}
    if not lost or len(lost) == len(replicas):
        return
    if rebuilds is None:
        manager.remove_replicas(list(lost))
    if rebuilds is None or rebuilds.leave_out(manager, lost, between_updates=between_updates):
        _log.warning(
            "rayguard: %d of %d replicas are lost (%s): weights go to the others from now on",
            len(lost),
            len(replicas),
            ", ".join(str(getattr(one, "replica_rank", "?")) for one in lost),
        )


async def _loss_of(replica: RolloutReplica, ask_s: float) -> Kind | None:
    """Return how a replica is lost: an actor of it is dead, or its engine; one that is busy says nothing."""
    from rayguard.frameworks.verl_rollouts import in_actor  # noqa: PLC0415 - where verl pushes weights, Ray is
    from rayguard.ray_internals.actor_classes import ask_ready, run_in_actor  # noqa: PLC0415 - as above

    asked: Sequence[Any] = [
        *(run_in_actor(one, in_actor.look) for one in replica.servers),
        *(ask_ready(one) for one in replica.workers),
    ]
    if not asked:
        return None
    answered, _ = await asyncio.wait([asyncio.wrap_future(one.future()) for one in asked], timeout=ask_s)
    found = [_loss_told(one) for one in answered]
    return next((kind for kind in (Kind.ACTOR_DIED, Kind.ENGINE_DEAD) if kind in found), None)


def _loss_told(answer: asyncio.Future[Any]) -> Kind | None:
    from ray.exceptions import ActorDiedError  # noqa: PLC0415 - as above

    error = answer.exception()
    if error is not None:
        return Kind.ACTOR_DIED if isinstance(error, ActorDiedError) else None
    return Kind.ENGINE_DEAD if getattr(answer.result(), "engine_dead", False) else None
