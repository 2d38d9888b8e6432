"""The groups of verl and EasyR1 (``RayWorkerGroup``) under a family that brings their workers back.

Stands on how both write ``verl/single_controller/ray/base.py`` (EasyR1 of 2026, verl 0.8 to 0.9): where one
of the places looked at is not there, or has other parameters, that is said once and nothing is changed.
Groups of detached workers, and those that fuse several workers in one class, are left alone.
"""

from __future__ import annotations

import functools
import inspect
import logging
import weakref
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rayguard.frameworks.change_once import change_once
from rayguard.frameworks.worker_groups.calls import Effect, method_of, roles_of
from rayguard.frameworks.worker_groups.pending_call import Sending, here
from rayguard.harmless import harmless

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import ModuleType

    from rayguard.frameworks.worker_groups.calls import GroupMethod
    from rayguard.frameworks.worker_groups.family import GroupFamily
    from rayguard.frameworks.worker_groups.policy import GroupPolicy

MODULE = "verl.single_controller.ray.base"  # after whose import ``attach`` is to be called
_MAGIC = "attrs_3141562937"  # by which both frameworks mark the methods of workers
_GENERATOR = ("self", "method_name", "dispatch_fn", "collect_fn", "execute_fn", "blocking")
_MAKERS = ("_init_with_resource_pool", "_init_with_subresource_pool")  # EasyR1 has the first alone
_MAKER = ("self", "resource_pool", "ray_cls_with_init", "bin_pack", "detached")
_SENDERS = ("execute_all_async", "execute_rank_zero_async")
_STATE = {"_workers", "_worker_names", "_master_addr", "_master_port"}
_ATTACHED = "__rayguard_groups__"
_FAMILY = "_rayguard_family"
_log = logging.getLogger("rayguard")
_families: weakref.WeakSet[GroupFamily] = weakref.WeakSet()


def attach(module: ModuleType, policy: GroupPolicy | None = None) -> bool:
    """Have all groups that this process makes from now on looked after; say whether they are."""
    return change_once(
        module,
        _ATTACHED,
        lambda: _change(module, policy),
        unknown=_unknown,
        framework="verl",
        otherwise="groups of workers are not brought back",
    )


def _change(module: ModuleType, policy: GroupPolicy | None) -> None:
    group_class: Any = module.RayWorkerGroup
    for name in _MAKERS:
        if hasattr(group_class, name):
            setattr(group_class, name, _recording(getattr(group_class, name), policy))
    for name in _SENDERS:
        setattr(group_class, name, _noticing(getattr(group_class, name)))
    group_class.workers = _handing_out(group_class.workers)
    module.func_generator = _guarding(module.func_generator)  # type: ignore[attr-defined]


def family_of(group: object) -> GroupFamily | None:
    """Return the family that a group belongs to: that of its workers; None for one that is left alone."""
    from rayguard.ray_internals.actor_classes import actor_id  # noqa: PLC0415 - only where a group was made

    workers = vars(group).get("_workers")
    if not workers or vars(group).get("fused_worker_used"):
        return None
    first = actor_id(workers[0])
    return next((one for one in list(_families) if actor_id(one.workers.handles[0]) == first), None)


class VerlWorkers:
    """The workers that one group made, for itself and for those that share them."""

    def __init__(
        self, group: object, make: Callable[..., None], args: tuple[object, ...], kwargs: Mapping[str, object]
    ) -> None:
        state = vars(group)
        self._group, self._make, self._args, self._kwargs = group, make, args, kwargs
        self._prefix = str(state["name_prefix"])
        self._address = state["_master_addr"], state["_master_port"]  # its user's, before it is made
        self._groups: weakref.WeakSet[object] = weakref.WeakSet([group])
        self._loads: dict[str, Callable[..., object]] = {}

    @property
    def name(self) -> str:
        """Say which group it is, for people."""
        roles = ", ".join(sorted(self.roles)) or "workers"
        return f"{type(self._group).__name__} of {len(self.handles)} ({roles})"

    @property
    def handles(self) -> Sequence[object]:
        """Return those that serve now."""
        found: Sequence[object] = vars(self._group)["_workers"]
        return found

    @functools.cached_property
    def roles(self) -> tuple[str, ...]:
        """Return the roles that share a worker's process."""
        cls = vars(self._group)["ray_cls_with_init"].cls
        return roles_of(name for name in dir(cls) if hasattr(getattr(cls, name, None), _MAGIC))

    def join(self, group: object, method: GroupMethod, bare: Callable[..., object]) -> None:
        """Take note of a group that calls these workers by ``bare``."""
        self._groups.add(group)
        if method.effect is Effect.LOAD:
            self._loads[method.role] = bare

    def load(self, method: GroupMethod) -> Callable[..., object] | None:
        """Return the function that loads what ``method`` saves; None where there is none."""
        return self._loads.get(method.role)

    def make_again(self, number: int) -> None:
        """Make new workers as the first were made, under other names, and put them into the groups' lists."""
        state = vars(self._group)
        before = state["_workers"], state["_worker_names"]
        state["_workers"], state["_worker_names"] = made, names = [], []  # type: ignore[var-annotated]
        state["_master_addr"], state["_master_port"] = self._address
        state["name_prefix"] = f"{self._prefix}_{number}"
        try:
            self._make(self._group, *self._args, **self._kwargs)
        finally:
            # Also where not all came up: they are to be found, and ended.
            state["_workers"], state["_worker_names"] = before
            for group in list(self._groups):
                vars(group)["_workers"][:] = made
                vars(group)["_worker_names"][:] = names


def _unknown(module: ModuleType) -> str:
    """Say what is not as it is known; '' if all is."""
    generator, group_class = getattr(module, "func_generator", None), getattr(module, "RayWorkerGroup", None)
    if not inspect.isfunction(generator) or tuple(inspect.signature(generator).parameters) != _GENERATOR:
        return "func_generator"
    if not inspect.isclass(group_class):
        return "RayWorkerGroup"
    return _unknown_in(group_class)


def _unknown_in(group_class: type) -> str:
    for name in _MAKERS:
        make = getattr(group_class, name, None)
        if make is None and name != _MAKERS[0]:
            continue
        if not callable(make) or tuple(inspect.signature(make).parameters)[: len(_MAKER)] != _MAKER:
            return f"RayWorkerGroup.{name}"
    unsent = [name for name in _SENDERS if not callable(getattr(group_class, name, None))]
    if unsent:
        return f"RayWorkerGroup.{unsent[0]}"
    if not isinstance(getattr(group_class, "workers", None), property):
        return "RayWorkerGroup.workers"
    known = {name for cls in group_class.__mro__ for name in _names_in(vars(cls).get("__init__"))}
    missing = sorted({*_STATE, "name_prefix", "ray_cls_with_init"} - known)
    return f"RayWorkerGroup.{missing[0]}" if missing else ""


def _names_in(function: object) -> tuple[str, ...]:
    code = getattr(function, "__code__", None)
    return () if code is None else code.co_names


def _recording(make: Callable[..., None], policy: GroupPolicy | None) -> Callable[..., None]:
    """Return ``make`` with note taken of the workers that it made, and how."""

    @functools.wraps(make)
    def recorded(self: object, *args: object, **kwargs: object) -> None:
        workers = None
        with harmless("group"):
            workers = VerlWorkers(self, make, args, kwargs)
        make(self, *args, **kwargs)
        if workers is not None:
            with harmless("group"):
                given = inspect.signature(make).bind(self, *args, **kwargs).arguments
                if not given["detached"] and not vars(self).get("fused_worker_used"):
                    _look_after(self, workers, policy)

    return recorded


def _look_after(group: object, workers: VerlWorkers, policy: GroupPolicy | None) -> None:
    from rayguard.frameworks.worker_groups import store_room  # noqa: PLC0415 - only where a group was made
    from rayguard.frameworks.worker_groups.family import GroupFamily  # noqa: PLC0415 - as above
    from rayguard.frameworks.worker_groups.policy import GroupPolicy  # noqa: PLC0415 - as above

    chosen = policy or GroupPolicy()
    family = GroupFamily(workers, replace(chosen, kept_bytes=min(chosen.kept_bytes, store_room.room_bytes())))
    vars(group)[_FAMILY] = family  # which lives as long as its groups do
    _families.add(family)


def _guarding(generator: Callable[..., object]) -> Callable[..., object]:
    """Return ``generator``, which makes a group's methods, with each of them under the group's family."""

    @functools.wraps(generator)
    def func_generator(
        self: object,
        method_name: str,
        dispatch_fn: object,
        collect_fn: object,
        execute_fn: Callable[..., object],
        blocking: bool,  # noqa: FBT001
    ) -> object:
        family = None
        with harmless("group"):
            family = family_of(self)
        if family is None:
            return generator(self, method_name, dispatch_fn, collect_fn, execute_fn, blocking)
        bare: Any = generator(self, method_name, dispatch_fn, collect_fn, Sending(execute_fn), blocking)
        with harmless("group"):
            workers: Any = family.workers
            method = method_of(method_name, workers.roles, blocking=bool(blocking))
            workers.join(self, method, bare)
            return _like(bare, GuardedMethod(family, method, bare))
        return bare

    return func_generator


class GuardedMethod:
    """A method of a group, called through its family; in another process it is the bare one."""

    def __init__(self, family: GroupFamily, method: GroupMethod, bare: Callable[..., object]) -> None:
        self._family, self._method, self._bare = family, method, bare

    def __call__(self, /, *args: object, **kwargs: object) -> object:
        """Call it."""
        return self._family.call(self._method, self._bare, *args, **kwargs)


def _like(bare: object, guarded: GuardedMethod) -> object:
    """Return ``guarded`` as what the framework makes: verl gives each method a class of its name."""
    if inspect.isfunction(bare):
        return functools.update_wrapper(guarded, bare)
    return type(type(bare).__name__, (type(bare),), {"__call__": guarded})()


def _noticing(send: Callable[..., object]) -> Callable[..., object]:
    """Return a group's ``execute_...`` with a doubt raised where somebody calls it by hand."""

    @functools.wraps(send)
    def sent(self: object, method_name: str, *args: object, **kwargs: object) -> object:
        with harmless("group"):
            family = None if here.within or here.rebuilding else family_of(self)
            if family is not None and method_of(method_name, family.workers.roles).effect is not Effect.NONE:
                family.doubt(f"{method_name} was called by {send.__name__}, which keeps no account")
        return send(self, method_name, *args, **kwargs)

    return sent


def _handing_out(workers: property) -> property:
    """Return ``workers`` with a doubt raised: whoever has the handles goes on calling those that ended."""

    def handed_out(self: object) -> object:
        with harmless("group"):
            if (family := family_of(self)) is not None:
                family.doubt(
                    "the handles of its workers were given to others, who would go on calling the dead"
                )
        return workers.__get__(self)

    return property(handed_out, doc=workers.__doc__)
