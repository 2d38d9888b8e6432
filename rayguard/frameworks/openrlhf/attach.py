"""Puts what is ours into two classes of OpenRLHF, after their modules were imported: where they are as known.

Stands on ``openrlhf/trainer/ray/vllm_engine.py`` and ``ppo_actor.py`` of 0.11.2. Where one of the places
looked at is not there, or has other parameters, that is said in one line and the class is left as it is.
"""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any

from rayguard.frameworks.change_once import change_once, names_in
from rayguard.frameworks.openrlhf.in_engine import LAST, said
from rayguard.harmless import harmless
from rayguard.ray_internals import actor_classes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import ModuleType

ROLLOUTS, POLICY = "openrlhf.trainer.ray.vllm_engine", "openrlhf.trainer.ray.ppo_actor"
_ATTACHED = "__rayguard_attached__"
_BUILDS = {"vllm", "AsyncEngineArgs", "AsyncLLMEngine", "from_engine_args", "llm", "kwargs"}
_PUSH = ("self", "name", "dtype", "shape")
_ROLLOUT: Mapping[str, tuple[str, ...]] = {
    "__init__": ("self", "args"),
    "init_process_group": ("self", "master_address", "master_port"),
    "update_weight": (*_PUSH, LAST),
    "update_weight_cuda_ipc": (*_PUSH, "ipc_handles", LAST),
}
_TRAINER: Mapping[str, tuple[str, ...]] = {
    "broadcast_to_vllm": ("self",),
    "_init_vllm_sync_group": ("self", "backend"),
}
_USES = {"vllm_engines", "use_cuda_ipc", "strategy"}


def attach(module: ModuleType) -> bool:
    """Attach to one of the two modules; say whether it is as known."""
    rollouts = module.__name__ != POLICY
    return change_once(
        module,
        _ATTACHED,
        lambda: (
            _guard_rollouts(module.RolloutRayActor) if rollouts else _guard_policy(module.ActorPPOTrainer)
        ),
        unknown=_unknown_rollouts if rollouts else _unknown_policy,
        framework="OpenRLHF",
        otherwise="rollout engines are not guarded"
        if rollouts
        else "a lost group for weights is not made anew",
    )


def _guard_policy(trainer: Any) -> None:
    from rayguard.frameworks.openrlhf import weight_group  # noqa: PLC0415 - only where a policy is

    trainer.broadcast_to_vllm = weight_group.guarding(trainer.broadcast_to_vllm)


def _guard_rollouts(actor_class: Any) -> None:
    cls: Any = actor_classes.written_class(actor_class)
    cls.__init__ = _building(cls.__init__)
    cls.init_process_group = _joining(cls.init_process_group)
    for name in ("update_weight", "update_weight_cuda_ipc"):
        setattr(cls, name, _pushing(getattr(cls, name), by_group=name == "update_weight"))
    actor_classes.export_anew(actor_class, _ROLLOUT)


# -- what stands in the class: sent to workers as it is here


def _building(bare: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(bare)
    async def __init__(self: object, *args: object, **kwargs: object) -> None:  # noqa: N807 - that is what it is
        guarded = None
        with harmless("openrlhf"):
            from rayguard.frameworks.openrlhf import rollout  # noqa: PLC0415 - where an engine is

            guarded = rollout.look_after(self, args, kwargs)
        if guarded is None:
            await bare(self, *args, **kwargs)
            return
        with guarded.building(bare.__globals__):
            await bare(self, *args, **kwargs)
        await guarded.ready()

    return __init__


def _joining(bare: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(bare)
    async def init_process_group(self: object, *args: object, **kwargs: object) -> object:
        from rayguard.frameworks.openrlhf import rollout  # noqa: PLC0415 - as above

        answer = await bare(self, *args, **kwargs)
        guarded = rollout.rollout_of(self)
        if guarded is not None:
            guarded.joined()
        return answer

    return init_process_group


def _pushing(bare: Callable[..., Any], *, by_group: bool) -> Callable[..., Any]:
    @functools.wraps(bare)
    async def push(self: object, *args: object, **kwargs: object) -> object:
        from rayguard.frameworks.openrlhf import rollout  # noqa: PLC0415 - as above

        guarded = rollout.rollout_of(self)
        if guarded is None:
            return await bare(self, *args, **kwargs)
        name, last = said(bare, (self, *args), kwargs)
        with guarded.pushing(name, by_group=by_group):
            answer = await bare(self, *args, **kwargs)
        if last:
            await guarded.pushed()
        return answer

    return push


# -- whether they are as known


def _unknown_rollouts(module: ModuleType) -> str:
    """Say what is not as it is known; '' if all is."""
    actor_class = getattr(module, "RolloutRayActor", None)
    cls = actor_classes.written_class(actor_class) if actor_classes.is_actor_class(actor_class) else None
    if cls is None:
        return "RolloutRayActor"
    unknown = _unknown_in(cls, _ROLLOUT)
    if unknown:
        return f"RolloutRayActor.{unknown}"
    methods = [vars(cls)[name] for name in _ROLLOUT]
    if not all(map(inspect.iscoroutinefunction, methods)):
        return "RolloutRayActor, some of whose methods are not async"
    make = methods[0]
    missing = sorted(_BUILDS - set(names_in(make.__code__)))
    if missing or "vllm" not in make.__globals__:
        return f"RolloutRayActor.__init__, without {', '.join(missing) or 'vllm'}"
    return ""


def _unknown_policy(module: ModuleType) -> str:
    cls = getattr(module, "ActorPPOTrainer", None)
    if not inspect.isclass(cls):
        return "ActorPPOTrainer"
    unknown = _unknown_in(cls, _TRAINER)
    if unknown:
        return f"ActorPPOTrainer.{unknown}"
    names = {name for method in ("__init__", "broadcast_to_vllm") for name in _names_of(cls, method)}
    missing = sorted({*_USES, "update_weight"} - names)
    return f"ActorPPOTrainer, without {', '.join(missing)}" if missing else ""


def _unknown_in(cls: type, known: Mapping[str, tuple[str, ...]]) -> str:
    for name, parameters in known.items():
        method = vars(cls).get(name)
        if not inspect.isfunction(method):
            return name
        if tuple(inspect.signature(method).parameters)[: len(parameters)] != parameters:
            return name
    return ""


def _names_of(cls: type, method: str) -> Iterator[str]:
    code = getattr(vars(cls).get(method), "__code__", None)
    return iter(()) if code is None else names_in(code)
