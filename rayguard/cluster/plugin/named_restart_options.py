"""Where actors are created: those of classes that were named get their restart options, where none were set.

In drivers by ``driver_hook.prepare``, in workers by ``worker_hook.setup``. A class is known by the name of
its module and its own: none is imported for it. Loads the standard library and Ray only.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rayguard.actors.life import snapshot_files
from rayguard.actors.methods import state_methods
from rayguard.harmless import harmless
from rayguard.ray_internals import actor_classes, actor_creation
from rayguard.ray_internals.module_names import user_class

if TYPE_CHECKING:
    from rayguard.ray_internals.actor_creation import After, Options

_KEY = "rayguard"
_RESTARTS, _RETRIES = "max_restarts", "max_task_retries"
_ALWAYS = -1

named: dict[str, dict[str, Any]] = {}  # of this process's job, by class path


def install(classes: dict[str, dict[str, Any]]) -> None:
    """Have actors of ``classes`` created restartable in this process; what was known is replaced."""
    named.clear()
    named.update(classes)
    actor_creation.add("restart options of named classes", before)
    snapshot_files.go_with_job()


def before(actor_class: object, options: Options) -> tuple[Options, After | None]:
    """Return the options to create an actor with, and what to do with its handle.

    Raises:
        ConfigError: The actor's own ``runtime_env`` asks for what there is not, or the class has not the
            methods that are said to hand its state over.
    """
    asked = _asked(actor_class, options)
    if asked is None:
        return options, None
    restorable = _restorable(asked, actor_class)
    chosen = filled(asked, options, restorable=restorable)
    word = {
        "restored": bool(chosen.get(_RESTARTS)) and (restorable or asked["state"] is not None),
        "asked": bool(options.get(_RESTARTS) or asked[_RESTARTS]),
        "repeats": bool(options.get(_RETRIES) or asked[_RETRIES]),
    }
    return chosen, functools.partial(_tell_actor, chosen, word)


def _tell_actor(options: Options, word: dict[str, bool], handle: object) -> None:
    with harmless("options"):
        from rayguard.actors.life.retries import leave_word  # noqa: PLC0415 - only for actors that were named

        retries = options.get(_RETRIES)
        made = not options.get("get_if_exists")
        retries = retries if isinstance(retries, int) else 0
        leave_word(actor_classes.actor_id(handle), retries=retries, made=made, **word)


def filled(asked: dict[str, Any], options: Options, *, restorable: bool) -> Options:
    """Return ``options`` with those restart options that the user left open, as ``asked``.

    What nobody can restore, and a member of a group, is restarted only where its user said so: here, or where
    it is created.
    """
    chosen = dict(options)
    may = (restorable or asked["state"] == "none") and not asked["group"]
    if chosen.get(_RESTARTS) is None:
        restarts = asked[_RESTARTS] if asked[_RESTARTS] is not None else _ALWAYS if may else None
        if restarts is None:
            return options
        chosen[_RESTARTS] = restarts
    if chosen.get(_RETRIES) is None and chosen[_RESTARTS] != 0 and (may or asked[_RETRIES] is not None):
        default = _ALWAYS if restorable or asked["idempotent"] else 0
        chosen[_RETRIES] = default if asked[_RETRIES] is None else asked[_RETRIES]
    return chosen


def _restorable(asked: dict[str, Any], actor_class: object) -> bool:
    modified = actor_classes.modified_class(actor_class)
    if modified is None or asked["state"] == "none":
        return False
    return state_methods(modified, asked["state"]) is not None


def _asked(actor_class: object, options: Options) -> dict[str, Any] | None:
    own = options.get("runtime_env") or {}
    classes = named
    if isinstance(own, Mapping) and _KEY in own:
        from rayguard.cluster.plugin.config import asked  # noqa: PLC0415 - loads pydantic

        classes = (asked(own[_KEY]) or {}).get("guard", {})
    if not classes:
        return None
    with harmless("options"):
        modified = actor_classes.modified_class(actor_class)
        if modified is None or hasattr(modified, "__rayguard__"):
            return None  # of another language; or guarded in the user's own words
        plain = user_class(modified)
        return classes.get(f"{plain.__module__}:{plain.__qualname__}")
    return None
