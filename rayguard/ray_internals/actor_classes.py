"""What Ray makes of a user's class: the actor class, the options that it was given, a handle on the actor.

Each function asks one private attribute of an object that a user or Ray hands over, and raises
``CapabilityOffError`` where this Ray has it elsewhere. How an actor comes to be is ``actor_creation``.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from rayguard.harmless import harmless
from rayguard.ray_internals.capability import Capability, ray_version
from rayguard.ray_internals.module_names import user_class

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from rayguard.errors import CapabilityOffError
    from rayguard.ray_internals.object_refs import Reference

_NOTHING = object()


def _is_found(_: Mapping[str, object]) -> None:
    """Make an actor class, without a cluster, and find in it what it was made of."""
    import ray  # noqa: PLC0415 - it is there: names of it were found

    plain = type("Trial", (), {})
    made = ray.remote(max_restarts=1)(plain)
    metadata = made.__ray_metadata__
    options = made._default_options  # noqa: SLF001 - here is where they are known
    if metadata.modified_class.__ray_actor_class__ is not plain or options["max_restarts"] != 1:
        raise RuntimeError("an actor class does not lead to the class that it was made of")


CLASSES = Capability(
    "actor classes",
    "a guard above @ray.remote does nothing, and guarded actors get no restart options",
    {"class": "ray.actor:ActorClass"},
    test=_is_found,
)
HANDLES = Capability(
    "actor handles",
    "no scope ends an actor, or what calls made in one",
    {"handle": "ray.actor:ActorHandle"},
)
RELEASING = Capability(
    "ended actors",
    "an actor that outlived its scope lives on",
    {"remove": "ray._raylet:CoreWorker.remove_actor_handle_reference"},
    known=((2, 60), (2, 60)),
    only_known=True,
)


def is_actor_class(value: object) -> bool:
    """Say whether ``value`` is what Ray made of a class."""
    return _is_a(value, "ray.actor", "ActorClass")


def is_handle(value: object) -> bool:
    """Say whether ``value`` stands for a running actor."""
    return _is_a(value, "ray.actor", "ActorHandle")


def handle_type() -> type[object]:
    """Return Ray's ``ActorHandle``."""
    kind: type[object] = HANDLES.found()["handle"]
    return kind


def is_remote_function(value: object) -> bool:
    """Say whether ``value`` is what Ray made of a function."""
    return _is_a(value, "ray.remote_function", "RemoteFunction")


def _is_a(value: object, module: str, name: str) -> bool:
    kind = getattr(sys.modules.get(module), name, None)  # where Ray is not loaded, there is none
    return kind is not None and isinstance(value, kind)


def modified_class(actor_class: Any) -> type | None:
    """Return the subclass that Ray made and sends to workers; None for a class of another language."""
    CLASSES.found()
    found: type | None = actor_class.__ray_metadata__.modified_class
    return found


def written_class(actor_class: object) -> type | None:
    """Return the class as its user wrote it; None for a class of another language."""
    modified = modified_class(actor_class)
    return None if modified is None else user_class(modified)


def default_options(actor_class: Any) -> dict[str, object]:
    """Return what ``@ray.remote(...)`` was given: the very dict."""
    CLASSES.found()
    found: dict[str, object] = actor_class._default_options  # noqa: SLF001 - as above
    return found


def export_anew(actor_class: Any, changed: Iterable[str]) -> None:
    """Have workers get the class as it is now, with those methods of the user's class that were ``changed``.

    Ray has put a tracing wrapper around each bare method, on the subclass that it sends to workers; there a
    method that was put on the user's class later would never be seen.
    """
    metadata = actor_class.__ray_metadata__
    for name in changed:
        if name in vars(metadata.modified_class):
            delattr(metadata.modified_class, name)
    with harmless("options"):  # a Ray without tracing wrappers has nothing to put back
        from ray.util.tracing.tracing_helper import _inject_tracing_into_class  # noqa: PLC0415

        _inject_tracing_into_class(metadata.modified_class)
    metadata.last_export_cluster_and_job = None


def actor_id(handle: object) -> str:
    """Return the hex id of the actor that ``handle`` stands for; '' for what is no handle."""
    found = getattr(handle, "__dict__", {}).get(
        "_ray_actor_id"
    )  # a handle's ``__getattr__`` makes up methods
    if found is not None:
        return str(found.hex())
    if is_handle(handle):
        raise _moved("_ray_actor_id")
    return ""


def runs_functions(handle: object) -> bool:
    """Say whether the actor takes functions to run: one of another language does not."""
    return not _of(handle, "_ray_is_cross_language") and "__ray_call__" in _of(
        handle, "_ray_method_signatures"
    )


def run_in_actor(handle: Any, function: Callable[..., object], *args: object) -> Reference:
    """Have the actor call ``function`` with itself and ``args``; return the reference to what comes of it."""
    answer: Reference = handle.__ray_call__.remote(function, *args)
    return answer


def ask_ready(handle: Any) -> Reference:
    """Have the actor answer once it is up, or Ray for it where it is dead; return the reference to that."""
    answer: Reference = handle.__ray_ready__.remote()
    return answer


def keeps_alive(handle: object) -> bool:
    """Say whether the actor lives on for ``handle``'s sake."""
    return not _of(handle, "_ray_weak_ref")


def release(core: Any, handle: Any) -> None:
    """Let go of the actor as if ``handle`` had been dropped; it must be one that ``keeps_alive``."""
    remove = RELEASING.found()["remove"]
    held = _of(handle, "_ray_actor_id")
    handle._ray_weak_ref = True  # noqa: SLF001 - its own end must not count down a second time
    remove(core, held)


def _of(handle: object, name: str) -> Any:
    found = vars(handle).get(name, _NOTHING)
    if found is _NOTHING:
        raise _moved(name)
    return found


def _moved(name: str) -> CapabilityOffError:
    return HANDLES.turn_off(f"Ray {'.'.join(map(str, ray_version()))} moved ray.actor.ActorHandle.{name}")
