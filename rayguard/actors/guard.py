"""``@rayguard.guard``: put a class or a task under guard; ``@rayguard.method``: say how one method may run.

Frameworks look at base classes and at attributes of methods (verl's workers do both), so the very same class
comes back, with wrappers that carry every attribute. Which wrappers, and what they do, is
``rayguard.actors.wrap`` and ``keeper``; functions are ``rayguard.actors.tasks``.
"""

from __future__ import annotations

import inspect
import sys
from dataclasses import replace
from types import FunctionType
from typing import TYPE_CHECKING, Any, TypeVar, overload

from rayguard.actors import tasks, wrap
from rayguard.actors.keeper import IDEMPOTENT, RAY_RETRIES
from rayguard.actors.mark import Guarding
from rayguard.actors.methods import MARK, public_methods
from rayguard.actors.options import filled, install
from rayguard.errors import ConfigError
from rayguard.faults.fault import Role
from rayguard.recovery.harmless import harmless
from rayguard.recovery.policy import GuardPolicy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from rayguard.recovery.memory_policy import MemoryPolicy

T = TypeVar("T")
F = TypeVar("F", bound="Callable[..., Any]")

_NOTHING: Any = object()
_ALWAYS = -1
_USAGE = (
    "use @rayguard.guard or @rayguard.guard(policy=..., idempotent=..., memory=...) on a class, or on a "
    "function below @ray.remote"
)


@overload
def guard(target: T, /) -> T: ...
@overload
def guard(
    *, policy: GuardPolicy = ..., idempotent: bool = ..., memory: MemoryPolicy | None = ...
) -> Callable[[T], T]: ...
def guard(target: Any = _NOTHING, /, **options: Any) -> Any:
    """Guard a class: its faults are diagnosed, recovered from where that can be done, and recorded.

    Below ``@ray.remote`` on the plain class or above it on the actor class; the very same object comes back.
    On a function, below ``@ray.remote``: the task is guarded the same way but for what only an actor can, to
    be restarted. How often Ray itself repeats it is ``@ray.remote(max_retries=...)``.
    ``policy`` is a ``GuardPolicy``. With ``idempotent=False`` no call is ever made a second time: such a
    call ends with an error where another one would have been repeated (``@rayguard.method`` for one method).
    ``memory`` is a ``MemoryPolicy`` (or None: not watched), instead of ``policy``'s.

    Raises ``ConfigError`` for what cannot be guarded, and for options that do not exist.
    """
    mark = _checked(options)
    if target is not _NOTHING:
        return _guarded(target, mark)

    def decorate(target: T) -> T:
        return _guarded(target, mark)  # type: ignore[no-any-return]

    return decorate


def _guarded(target: Any, mark: Guarding) -> Any:
    if isinstance(target, FunctionType):
        return tasks.guard_function(target, mark)
    return guard_class(target, mark)


def method(*marked: Any, idempotent: bool = _NOTHING) -> Callable[[F], F]:
    """Say of one method whether it may run twice: ``@rayguard.method(idempotent=False)``.

    Goes above or below ``@ray.method``. With False, Ray does not repeat the method after a restart either,
    unless ``@ray.method(max_task_retries=...)`` says otherwise.
    """
    if marked or not isinstance(idempotent, bool):
        raise ConfigError("use @rayguard.method(idempotent=False) or (idempotent=True), with the argument")

    def decorate(function: F) -> F:
        if not isinstance(function, FunctionType):
            raise ConfigError(
                f"@rayguard.method is for the plain methods of a class; the guard leaves {function!r} alone. "
                "Leave it out there"
            )
        setattr(function, IDEMPOTENT, idempotent)
        if not hasattr(function, RAY_RETRIES) and not idempotent:
            setattr(function, RAY_RETRIES, 0)
        return function

    return decorate


def guard_class(target: T, mark: Guarding) -> T:
    """Put ``target`` (a class, or the actor class that Ray made of one) under guard as ``mark`` says."""
    cls = _plain_class(target)
    before = vars(cls).get(MARK)
    if before is not None and not before.implied:
        raise ConfigError(
            f"{cls.__name__} is guarded twice; one @rayguard.guard is enough, keep the outer one"
        )
    methods = dict(public_methods(cls))
    late = _importable(cls)
    role = mark.role if before is None else before.role
    kept = replace(mark, role=role, late=late if before is None else before.late)
    try:
        setattr(cls, MARK, kept)
    except TypeError as error:
        raise ConfigError(f"{cls.__name__} cannot be guarded: it is built in; guard a subclass") from error
    for name, found in methods.items():
        if not mark.idempotent and getattr(found, IDEMPOTENT, False) and not hasattr(found, RAY_RETRIES):
            setattr(found, RAY_RETRIES, _ALWAYS)  # the user's exception to a class whose calls run once
        own = vars(cls).get(name) is found
        setattr(cls, name, wrap.wrap(name, found) if own else wrap.inherited(cls, name, found))
    install()
    if cls is not target:
        _above_ray(target, kept, methods)
    return target


def _checked(options: dict[str, Any]) -> Guarding:
    unknown = sorted(set(options) - {"policy", "idempotent", "memory"})
    if unknown:
        raise ConfigError(
            f"guard() knows no option {', '.join(unknown)}; it has policy, idempotent and memory"
        )
    policy = options.get("policy")
    idempotent = options.get("idempotent", True)
    if policy is None:
        policy = GuardPolicy()
    if not isinstance(policy, GuardPolicy):
        raise ConfigError(f"guard(policy=...) takes a rayguard.GuardPolicy, got {policy!r}")
    if not isinstance(idempotent, bool):
        raise ConfigError(f"guard(idempotent=...) takes True or False, got {idempotent!r}")
    if "memory" in options:
        policy = replace(policy, memory=options["memory"])
    return Guarding(policy=policy, idempotent=idempotent, role=Role.ACTOR)


def _plain_class(target: Any) -> type:
    if isinstance(target, type):
        return target
    ray_actor = sys.modules.get("ray.actor")
    if ray_actor is not None:
        if isinstance(target, ray_actor.ActorHandle):
            raise ConfigError(
                f"{target!r} is a running actor; guard its class before it is created: {_USAGE}"
            )
        if isinstance(target, ray_actor.ActorClass):
            modified = target.__ray_metadata__.modified_class
            if modified is None:
                raise ConfigError("an actor class of another language cannot be guarded")
            return modified.__ray_actor_class__  # type: ignore[no-any-return]
    ray_function = sys.modules.get("ray.remote_function")
    if ray_function is not None and isinstance(target, ray_function.RemoteFunction):
        raise ConfigError("guard() was put on what @ray.remote made of a function: put it below @ray.remote")
    what = "a function" if inspect.isroutine(target) else f"an object of {type(target).__name__}"
    raise ConfigError(f"guard() was put on {target!r}, {what} and no class; {_USAGE}")


def _above_ray(actor_class: Any, mark: Guarding, names: Iterable[str]) -> None:
    """Set the actor class's restart options where the user set none, and bring Ray's copy up to date.

    Ray has put a tracing wrapper around each bare method, on the subclass that it sends to workers; there the
    guarded method would never be seen.
    """
    options = actor_class._default_options  # noqa: SLF001 - what @ray.remote(...) was given
    options.update(filled(mark, options))
    metadata = actor_class.__ray_metadata__
    for name in names:
        if name in vars(metadata.modified_class):
            delattr(metadata.modified_class, name)
    with harmless("options"):  # a Ray without tracing wrappers has nothing to put back
        from ray.util.tracing.tracing_helper import _inject_tracing_into_class  # noqa: PLC0415

        _inject_tracing_into_class(metadata.modified_class)
    metadata.last_export_cluster_and_job = None


def _importable(cls: type) -> bool:
    """Say whether workers get ``cls`` by its name, as it was before this guard: it has that name already."""
    if cls.__module__ == "__main__":
        return False
    found: Any = sys.modules.get(cls.__module__)
    for part in cls.__qualname__.split("."):
        found = getattr(found, part, None)
    return found is cls
