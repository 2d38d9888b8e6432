"""The group of processes over which verl pushes weights: made anew where its members have changed.

verl's engines for NCCL and HCCL, and its Kimi engine, keep it from one update to the next where nobody sets
``rebuild_group=True``, and refuse any other number of members: a replica that is left out, or comes back,
would end the job at the next update. They let go of it by their own finalize method.
"""

from __future__ import annotations

import functools
import inspect
import weakref
from concurrent import futures
from typing import TYPE_CHECKING, Any, cast

from rayguard.frameworks.change_once import change_once
from rayguard.harmless import harmless

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from rayguard.frameworks.verl_rollouts.interfaces import CallReference, WeightWorkers

_ATTACHED = "__rayguard_weight_group__"
_KEEPS = "rebuild_group"  # by which an engine is told not to keep its group
_LET_GO_S = 120.0
_members: weakref.WeakKeyDictionary[object, frozenset[str]] = weakref.WeakKeyDictionary()


def attach(module: ModuleType) -> bool:
    """Have the groups of all managers in this process follow their members; say whether they do."""
    return change_once(
        module,
        _ATTACHED,
        lambda: _change(module),
        unknown=_unknown,
        framework="verl",
        otherwise="a group that is kept for weight updates does not follow its members",
    )


def _change(module: Any) -> None:
    manager_class = module.CheckpointEngineManager
    manager_class.build_process_group = _following(manager_class.build_process_group)


def _unknown(module: ModuleType) -> str:
    build: Any = getattr(getattr(module, "CheckpointEngineManager", None), "build_process_group", None)
    code = getattr(build, "__code__", None)
    if code is None or tuple(inspect.signature(build).parameters) != ("self", "rollout"):
        return "CheckpointEngineManager.build_process_group"
    if not {"backend_cls", "execute_checkpoint_engine"} <= set(code.co_names):
        return "CheckpointEngineManager.build_process_group"
    return ""


def _following(build: Callable[..., object]) -> Callable[..., object]:
    @functools.wraps(build)
    def build_process_group(self: object, rollout: WeightWorkers) -> object:
        members, before = None, None
        with harmless("rollout"):
            members, before = _ids(rollout), _members.get(self)
        if before is not None and members is not None and members != before and keeps_its_group(self):
            _let_go(self, rollout, before)
        answer = build(self, rollout)
        if members is not None:
            _members[self] = members
        return answer

    return build_process_group


def keeps_its_group(manager: Any) -> bool:
    """Say whether the engine of a manager keeps its group, as this job is configured."""
    with harmless("rollout"):
        engine = manager.backend_cls
        finalize = getattr(engine, "finalize", None)
        if _KEEPS not in getattr(getattr(finalize, "__code__", None), "co_names", ()):
            return False
        default = inspect.signature(engine.__init__).parameters[_KEEPS].default
        given = getattr(manager.config, "engine_kwargs", None) or {}
        return not dict(given.get(manager.backend) or {}).get(_KEEPS, default)
    return False


def _let_go(manager: Any, rollout: WeightWorkers, before: frozenset[str]) -> None:
    """Have all that are in the kept group leave it.

    Its errors are the update's: where some have left it and others not, the next group would never be whole.

    Raises:
        ray.exceptions.RayError: One could not.
        TimeoutError: One was not through in time.
    """
    state = vars(manager)
    trainer = cast("WeightWorkers", state.get("actor_wg") or state.get("trainer"))  # its name in verl 0.8
    was_in = [one in before for one in _id_list(rollout)]
    leave = [("finalize" if inside else "__repr__") for inside in was_in]
    parts = ((trainer, ["finalize"] * trainer.world_size), (rollout, leave))
    for flag in (True, None, False):
        sent: list[CallReference] = []  # of both: NCCL ends a group only where all its members do
        for group, methods in parts:
            size = len(methods)
            sent += (
                group.execute_checkpoint_engine(methods)
                if flag is None
                else group.execute_checkpoint_engine(["__setattr__"] * size, [_KEEPS] * size, [flag] * size)
            )
        done, waiting = futures.wait([one.future() for one in sent], _LET_GO_S)
        if waiting:
            raise TimeoutError(f"{len(waiting)} of {len(sent)} did not leave the group for weights in time")
        for one in done:
            one.result()


def _id_list(rollout: WeightWorkers) -> list[str]:
    from rayguard.ray_internals.actor_classes import actor_id  # noqa: PLC0415 - where verl is, Ray is

    return [actor_id(one) for one in vars(rollout)["_workers"]]


def _ids(rollout: WeightWorkers) -> frozenset[str]:
    return frozenset(_id_list(rollout))
