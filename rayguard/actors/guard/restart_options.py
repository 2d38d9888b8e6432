"""Restart options for guarded actors, filled in where the user set none.

Under ``@ray.remote`` the guard never sees the actor class, so the options are filled in when an actor is
created, in whichever process that happens: the mark on the guarded class travels with it and brings the
hook along. Does not touch methods (``rayguard.actors.guard.wrappers``) and decides nothing about failures.
"""

from __future__ import annotations

import copyreg
import functools
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from rayguard.actors.guard import wrappers
from rayguard.actors.life import snapshot_files
from rayguard.actors.life.retries import ALWAYS, RETRIES, leave_word
from rayguard.actors.mark import Guarding, StateRule, mark_of
from rayguard.actors.methods import bare_methods
from rayguard.harmless import harmless
from rayguard.ray_internals import actor_classes, actor_creation
from rayguard.ray_internals.module_names import user_class

if TYPE_CHECKING:
    from collections.abc import Callable

    from rayguard.ray_internals.actor_creation import After, Options


def _travelling(mark: Guarding) -> tuple[Callable[..., Guarding], tuple[dict[str, object]]]:
    """Return how a mark is pickled: where it is unpickled, the hook is installed."""
    return _arrived, ({f.name: getattr(mark, f.name) for f in fields(mark)},)


def _arrived(values: dict[str, Any]) -> Guarding:
    install()
    return Guarding(**values)


_FILLED = "__rayguard_filled__"  # the attribute of a class that names the default options that are ours


copyreg.pickle(Guarding, _travelling)  # not in `mark`, which what this file imports stands on


def filled(mark: Guarding, options: Options) -> Options:
    """Return ``options`` with those restart options that the user left open.

    An actor whose state nobody can restore is restarted only where its user says so. Ray repeats calls of one
    that can be restored: its next life knows which were cut off. Else only those that may run twice.
    """
    if mark.state is StateRule.UNSAID:
        return options
    chosen = dict(options)
    if chosen.get("max_restarts") is None:
        chosen["max_restarts"] = ALWAYS
    if chosen.get(RETRIES) is None and chosen["max_restarts"] != 0:
        chosen[RETRIES] = ALWAYS if mark.ray_may_repeat else 0
    return chosen


def install() -> None:
    """Have guarded actors that this process creates get their options; harmless where Ray is not there."""
    with harmless("options"):
        actor_creation.add("restart options", _before)
    snapshot_files.go_with_job()


def fill_defaults(target: object, cls: type, mark: Guarding) -> None:
    """Fill in the default options of an actor class; what it had not of its user is noted on ``cls``."""
    options = actor_classes.default_options(target)
    chosen = filled(mark, options)
    ours = frozenset(name for name in chosen if options.get(name) != chosen[name])
    options.update(chosen)
    setattr(cls, _FILLED, ours)


def _before(actor_class: object, options: Options) -> tuple[Options, After | None]:
    said = {name for name in ("max_restarts", RETRIES) if options.get(name)}
    with harmless("options"):
        said -= getattr(actor_classes.modified_class(actor_class), _FILLED, frozenset())
        options = _prepared(actor_class, options)
    return options, functools.partial(_tell_actor, actor_class, options, frozenset(said))


def _prepared(actor_class: object, options: Options) -> Options:
    modified = actor_classes.modified_class(actor_class)
    mark = None if modified is None else mark_of(modified)
    if modified is None or mark is None or mark.watching:
        return options
    if mark.late or bare_methods(user_class(modified)):
        wrappers.carry(modified)
    return filled(mark, options)


def _tell_actor(actor_class: object, options: Options, said: frozenset[str], handle: object) -> None:
    """Leave word for an actor of whose restarts these are, and whether Ray is to repeat its calls.

    An actor cannot read its own ``max_task_retries`` in Ray 2.60. Without this word a poisoned process would
    end itself in the middle of a call that nobody repeats, and the caller would lose the user's own error.
    """
    with harmless("options"):
        modified = actor_classes.modified_class(actor_class)
        mark = None if modified is None else mark_of(modified)
        if mark is None or mark.watching:
            return
        ours = bool(options.get("max_restarts")) and mark.state is not StateRule.UNSAID
        retries = 0 if options.get(RETRIES) == 0 else None
        if ours or retries == 0:
            made = not options.get("get_if_exists")
            id_ = actor_classes.actor_id(handle)
            asked, repeats = ours and "max_restarts" in said, ours and RETRIES in said
            leave_word(id_, retries=retries, asked=asked, repeats=repeats, restored=ours, made=made)
