"""The mark on a guarded class: how it is guarded, readable by whoever has the class."""

from __future__ import annotations

from dataclasses import dataclass, field

from rayguard.actors.methods import MARK
from rayguard.faults.fault import Role
from rayguard.recovery.policy import GuardPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class Guarding:
    """How a class is guarded; ``options`` says how it travels.

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


class Task:
    """Stands for a guarded function; each has a class of its own, of the function's name, with the mark."""


def mark_of(cls: type) -> Guarding | None:
    """Return how ``cls`` (or a base of it) is guarded, or None."""
    mark = getattr(cls, MARK, None)
    return mark if isinstance(mark, Guarding) else None
