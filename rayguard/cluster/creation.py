"""Where actors are created: those of classes that were named get their restart options, where none were set.

In drivers by ``driver.prepare``, in workers by ``hook.setup``. A class is known by the name of its module and
its own: none is imported for it. Loads the standard library and Ray only.
"""

from __future__ import annotations

import functools
from typing import Any

from rayguard.cluster.unharmed import unharmed

_HOOKED = "__rayguard_plugin_hook__"
_KEY = "rayguard"
_RESTARTS, _RETRIES = "max_restarts", "max_task_retries"
_ALWAYS = -1

named: dict[str, dict[str, Any]] = {}  # of this process's job, by class path


def install(classes: dict[str, dict[str, Any]]) -> None:
    """Have actors of ``classes`` created restartable in this process, once; what was known is replaced."""
    from ray.actor import ActorClass  # noqa: PLC0415 - this process runs Ray, or is about to

    named.clear()
    named.update(classes)
    if not hasattr(ActorClass._remote, _HOOKED):  # noqa: SLF001 - the one place every creation goes through
        ActorClass._remote = _hooked(ActorClass._remote)  # noqa: SLF001


def _hooked(create: Any) -> Any:
    @functools.wraps(create)
    def _remote(self: Any, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        asked = _asked(self, options)
        if asked is None:
            return create(self, args, kwargs, **options)
        chosen = filled(asked, options)
        handle = create(self, args, kwargs, **chosen)
        with unharmed("options"):
            from rayguard.actors.retries import tell_retries  # noqa: PLC0415 - only for actors that were named

            made = not chosen.get("get_if_exists")
            tell_retries(handle._actor_id.hex(), chosen.get(_RETRIES) or 0, made=made)  # noqa: SLF001 - its only name
        return handle

    setattr(_remote, _HOOKED, True)
    return _remote


def filled(asked: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    """Return ``options`` with those restart options that the user left open, as ``asked``."""
    chosen = dict(options)
    if chosen.get(_RESTARTS) is None:
        chosen[_RESTARTS] = asked[_RESTARTS]
    if chosen.get(_RETRIES) is None and chosen[_RESTARTS] != 0:
        default = _ALWAYS if asked["idempotent"] else 0
        chosen[_RETRIES] = default if asked[_RETRIES] is None else asked[_RETRIES]
    return chosen


def _asked(actor_class: Any, options: dict[str, Any]) -> dict[str, Any] | None:
    """Return what was asked for this actor's class.

    Raises:
        ConfigError: The actor's own ``runtime_env`` asks for what there is not.
    """
    own = options.get("runtime_env") or {}
    classes = named
    if _KEY in own:
        from rayguard.cluster.plugin_config import asked  # noqa: PLC0415 - loads pydantic

        classes = (asked(own[_KEY]) or {}).get("guard", {})
    if not classes:
        return None
    with unharmed("options"):
        modified = actor_class.__ray_metadata__.modified_class
        if modified is None or hasattr(modified, "__rayguard__"):
            return None  # of another language; or guarded in the user's own words
        plain = modified.__ray_actor_class__
        return classes.get(f"{plain.__module__}:{plain.__qualname__}")
    return None
