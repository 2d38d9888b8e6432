"""Restart options for guarded actors, filled in where the user set none.

Under ``@ray.remote`` the guard never sees the actor class, so the options are filled in when an actor is
created, in whichever process that happens: the mark on the guarded class travels with it and brings the
hook along. Does not touch methods (``rayguard.actors.wrap``) and decides nothing about failures.
"""

from __future__ import annotations

import copyreg
import functools
from dataclasses import fields
from typing import Any

from rayguard.actors import wrap
from rayguard.actors.mark import Guarding, mark_of
from rayguard.actors.retries import ALWAYS, RETRIES, tell_retries
from rayguard.recovery.harmless import harmless

_HOOKED = "__rayguard_hook__"


def _travelling(mark: Guarding) -> tuple[Any, ...]:
    """Return how a mark is pickled: where it is unpickled, the hook is installed."""
    return _arrived, ({f.name: getattr(mark, f.name) for f in fields(mark)},)


def _arrived(values: dict[str, Any]) -> Guarding:
    install()
    return Guarding(**values)


copyreg.pickle(Guarding, _travelling)  # not in `mark`, which what this file imports stands on


def filled(mark: Guarding, options: dict[str, Any]) -> dict[str, Any]:
    """Return ``options`` with those restart options that the user left open.

    Calls are repeated only where the actor may restart at all, and only if they may run twice.
    """
    chosen = dict(options)
    if chosen.get("max_restarts") is None:
        chosen["max_restarts"] = ALWAYS
    if chosen.get(RETRIES) is None and chosen["max_restarts"] != 0:
        chosen[RETRIES] = ALWAYS if mark.idempotent else 0
    return chosen


def install() -> None:
    """Hook actor creation in this process, once; harmless where Ray is missing or unknown."""
    with harmless("options"):
        from ray.actor import ActorClass  # noqa: PLC0415 - `import rayguard` stays free

        if not hasattr(ActorClass._remote, _HOOKED):  # noqa: SLF001 - the one place every creation goes through
            ActorClass._remote = _hooked(ActorClass._remote)  # noqa: SLF001


def _hooked(create: Any) -> Any:
    @functools.wraps(create)
    def _remote(self: Any, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        chosen = options
        with harmless("options"):
            chosen = _prepared(self, options)
        handle = create(self, args, kwargs, **chosen)
        with harmless("options"):
            _tell_actor(self, handle, chosen)
        return handle

    setattr(_remote, _HOOKED, True)
    return _remote


def _prepared(actor_class: Any, options: dict[str, Any]) -> dict[str, Any]:
    modified = actor_class.__ray_metadata__.modified_class
    mark = None if modified is None else mark_of(modified)
    if mark is None or mark.watching:
        return options
    if mark.late:
        wrap.carry(modified)
    return filled(mark, options)


def _tell_actor(actor_class: Any, handle: Any, options: dict[str, Any]) -> None:
    """Leave word for an actor whose calls Ray will not repeat although the class would allow it.

    An actor cannot read its own ``max_task_retries`` in Ray 2.60. Without this word a poisoned process would
    end itself in the middle of a call that nobody repeats, and the caller would lose the user's own error.
    """
    modified = actor_class.__ray_metadata__.modified_class
    mark = None if modified is None else mark_of(modified)
    if (
        mark is None
        or mark.watching
        or options.get("get_if_exists")
        or options.get(RETRIES) != 0
        or not mark.idempotent
    ):
        return
    tell_retries(handle._actor_id.hex(), 0)  # noqa: SLF001 - its only name
