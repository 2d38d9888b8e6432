"""Restart options for guarded actors, filled in where the user set none.

Under ``@ray.remote`` the guard never sees the actor class, so the options are filled in when an actor is
created, in whichever process that happens: the mark on the guarded class travels with it and brings the
hook along. Does not touch methods (``rayguard.actors.wrap``) and decides nothing about failures.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field, fields
from typing import Any

from rayguard.actors.incarnation import ActorMemory
from rayguard.faults.fault import Role
from rayguard.recovery.harmless import harmless
from rayguard.recovery.policy import GuardPolicy

MARK = "__rayguard__"
_HOOKED = "__rayguard_hook__"
_ALWAYS = -1  # Ray's "without end"; the policy's process_budget is what bounds it
RETRIES = "max_task_retries"


@dataclass(frozen=True, slots=True, kw_only=True)
class Guarding:
    """The mark on a guarded class: how it is guarded. Unpickling it installs the hook where the class goes.

    ``late``: the class was guarded after its module had defined it. A worker that imports the module sees it
    bare, so its wrappers must travel with the actor class. ``implied``: guarded because of a base class
    (``RolloutMixin``); an explicit guard may say it in its own words. ``watching``: what happens is told, and
    nothing is done: no call is repeated, no process ended or given up, no option set. ``by_plugin``: guarded
    by name, without a word in the user's code. ``group``: the rank group that it was said to be of.
    """

    policy: GuardPolicy = field(default_factory=GuardPolicy)
    idempotent: bool = True
    role: Role = Role.ACTOR
    late: bool = False
    implied: bool = False
    watching: bool = False
    by_plugin: bool = False
    group: str = ""

    def __reduce__(self) -> tuple[Any, ...]:
        return _arrived, ({f.name: getattr(self, f.name) for f in fields(self)},)


def _arrived(values: dict[str, Any]) -> Guarding:
    install()
    return Guarding(**values)


def mark_of(cls: type) -> Guarding | None:
    """Return how ``cls`` (or a base of it) is guarded, or None."""
    mark = getattr(cls, MARK, None)
    return mark if isinstance(mark, Guarding) else None


def filled(mark: Guarding, options: dict[str, Any]) -> dict[str, Any]:
    """Return ``options`` with those restart options that the user left open.

    Calls are repeated only where the actor may restart at all, and only if they may run twice.
    """
    chosen = dict(options)
    if chosen.get("max_restarts") is None:
        chosen["max_restarts"] = _ALWAYS
    if chosen.get(RETRIES) is None and chosen["max_restarts"] != 0:
        chosen[RETRIES] = _ALWAYS if mark.idempotent else 0
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
        from rayguard.actors import wrap  # noqa: PLC0415 - it imports this module

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


def tell_retries(actor_id: str, retries: int, *, made: bool = True) -> None:
    """Leave word for an actor of how often Ray repeats its calls after a restart.

    Where it was perhaps not ``made`` here but found (``get_if_exists``), the word of who made it stays.
    """
    word = ActorMemory(actor_id, "options")
    if made or not word.load():
        word.save({RETRIES: retries})


def ray_repeats(actor_id: str, mark: Guarding) -> bool:
    """Say whether Ray repeats this actor's calls after a restart, as far as its creator left word.

    Without a word it does, but not where the plugin guards: its creator may have known nothing of rayguard.
    """
    without_a_word = 0 if mark.by_plugin else _ALWAYS
    return bool(ActorMemory(actor_id, "options").load().get(RETRIES, without_a_word) != 0)
