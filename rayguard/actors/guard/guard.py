"""``@rayguard.guard``: put a class or a task under guard; ``@rayguard.method``: say how one method may run.

Frameworks look at base classes and at attributes of methods (verl's workers do both), so the very same class
comes back, with wrappers that carry every attribute. Which wrappers, and what they do, is
``rayguard.actors.guard.wrappers`` and ``call_recovery``; functions are ``rayguard.actors.guard.tasks``.
"""

from __future__ import annotations

import functools
import inspect
import sys
from dataclasses import replace
from types import FunctionType
from typing import TYPE_CHECKING, Any, TypeVar, cast, overload

from rayguard.actors.guard import tasks, wrappers
from rayguard.actors.guard.restart_options import fill_defaults, install
from rayguard.actors.life.retries import ALWAYS
from rayguard.actors.mark import Guarding, mark_of, said_state
from rayguard.actors.methods import IDEMPOTENT, MARK, RAY_RETRIES, bare_methods
from rayguard.errors import ConfigError
from rayguard.faults.fault import Role
from rayguard.harmless import harmless
from rayguard.options import explained, nearest
from rayguard.ray_internals import actor_classes
from rayguard.recovery.policy import GuardPolicy
from rayguard.tried import PYTHON, RAY, warn_untried

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from rayguard.recovery.memory_policy import MemoryPolicy

T = TypeVar("T")
F = TypeVar("F", bound="Callable[..., object]")

_NOTHING: Any = object()
_OPTIONS = ("policy", "state", "idempotent", "memory")
_USAGE = (
    "use @rayguard.guard or @rayguard.guard(policy=..., idempotent=..., memory=...) on a class, or on a "
    "function below @ray.remote"
)


@overload
def guard(target: T, /) -> T: ...
@overload
def guard(
    *,
    policy: GuardPolicy = ...,
    state: str | tuple[str, str] | None = ...,
    idempotent: bool = ...,
    memory: MemoryPolicy | None = ...,
) -> Callable[[T], T]: ...
def guard(target: object = _NOTHING, /, **options: object) -> object:
    """Guard a class: its faults are diagnosed, recovered from where that can be done, and recorded.

    Below ``@ray.remote`` on the plain class or above it on the actor class; the very same object comes back.
    On a function, below ``@ray.remote``: the task is guarded the same way but for what only an actor can, to
    be restarted. How often Ray itself repeats it is ``@ray.remote(max_retries=...)``.
    What a class is decides what may be restarted. One that has ``state_dict`` and ``load_state_dict`` of its
    own, or ``snapshot`` and ``restore``, or the methods of ``state=("save", "load")``, goes on from its last
    state after any death. With ``state="none"`` you say that there is none to lose. Any other is restarted
    only where you ask Ray for it.
    With ``idempotent=True`` you say that its calls may run twice (``@rayguard.method`` for one method). Else
    a call that failed or was cut off ends with its error, and is not made again.
    ``policy`` is a ``GuardPolicy``, ``memory`` a ``MemoryPolicy`` (or None: not watched) in place of
    ``policy``'s.

    Raises ``ConfigError`` for what cannot be guarded, and for options that do not exist.
    """
    decorate = functools.partial(_guarded, mark=_checked(options))
    return decorate if target is _NOTHING else decorate(target)


def _guarded(target: T, mark: Guarding) -> T:
    with harmless("tried versions"):
        warn_untried(PYTHON, RAY)
    if isinstance(target, FunctionType):
        if mark.state_methods is not None:
            raise ConfigError(
                f"guard(state=...) names methods; {target.__qualname__} is a function: leave it out"
            )
        return cast("T", tasks.guard_function(target, mark))
    return guard_class(target, mark)


@explained
def method(*marked: object, idempotent: bool = _NOTHING) -> Callable[[F], F]:
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
    if actor_classes.is_actor_class(target) and not actor_classes.CLASSES.usable():
        return target  # it was said: with this Ray, only a class below @ray.remote can be found
    cls = _plain_class(target)
    before = vars(cls).get(MARK)
    if before is not None and not before.implied:
        raise ConfigError(
            f"{cls.__name__} is guarded twice; one @rayguard.guard is enough, keep the outer one"
        )
    methods = bare_methods(cls, mark.state_methods)
    late = _importable(cls)
    role = mark.role if before is None else before.role
    if before is not None and mark.idempotent is None:
        mark = replace(mark, idempotent=before.idempotent)
    kept = replace(mark, role=role, late=late if before is None else before.late)
    try:
        setattr(cls, MARK, kept)
    except TypeError as error:
        raise ConfigError(f"{cls.__name__} cannot be guarded: it is built in; guard a subclass") from error
    for name, found in methods.items():
        if not mark.idempotent and getattr(found, IDEMPOTENT, False) and not hasattr(found, RAY_RETRIES):
            setattr(found, RAY_RETRIES, ALWAYS)  # the user's exception to a class whose calls run once
        own = vars(cls).get(name) is found
        setattr(cls, name, wrappers.wrap(name, found) if own else wrappers.inherited(cls, name, found))
    install()
    if cls is not target:
        fill_defaults(target, cls, mark_of(cls) or kept)
        actor_classes.export_anew(target, methods)
    return target


def _checked(options: Mapping[str, Any]) -> Guarding:
    unknown = sorted(set(options) - set(_OPTIONS))
    if unknown:
        near = nearest(unknown[0], _OPTIONS)
        raise ConfigError(
            f"guard() knows no option {', '.join(unknown)}; it has policy, state, idempotent and memory"
            + (f". Did you mean guard({near}=...)?" if near else "")
        )
    policy = options.get("policy")
    idempotent = options.get("idempotent")
    if policy is None:
        policy = GuardPolicy()
    if not isinstance(policy, GuardPolicy):
        raise ConfigError(f"guard(policy=...) takes a rayguard.GuardPolicy, got {policy!r}")
    if "idempotent" in options and not isinstance(idempotent, bool):
        raise ConfigError(f"guard(idempotent=...) takes True or False, got {idempotent!r}")
    try:
        state, methods = said_state(options.get("state"))
    except ConfigError as error:
        raise ConfigError(f"guard(state={options['state']!r}) cannot be: {error}") from error
    if "memory" in options:
        policy = replace(policy, memory=options["memory"])
    return Guarding(
        policy=policy,
        state=state,
        state_methods=methods,
        idempotent=idempotent,
        role=Role.ACTOR,
    )


def _plain_class(target: Any) -> type:
    if isinstance(target, type):
        return target
    if actor_classes.is_handle(target):
        raise ConfigError(f"{target!r} is a running actor; guard its class before it is created: {_USAGE}")
    if actor_classes.is_actor_class(target):
        written = actor_classes.written_class(target)
        if written is None:
            raise ConfigError("an actor class of another language cannot be guarded")
        return written
    if actor_classes.is_remote_function(target):
        raise ConfigError("guard() was put on what @ray.remote made of a function: put it below @ray.remote")
    what = "a function" if inspect.isroutine(target) else f"an object of {type(target).__name__}"
    raise ConfigError(f"guard() was put on {target!r}, {what} and no class; {_USAGE}")


def _importable(cls: type) -> bool:
    """Say whether workers get ``cls`` by its name, as it was before this guard: it has that name already."""
    if cls.__module__ == "__main__":
        return False
    found: Any = sys.modules.get(cls.__module__)
    for part in cls.__qualname__.split("."):
        found = getattr(found, part, None)
    return found is cls
