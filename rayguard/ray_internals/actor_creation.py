"""Where actors are created: ``ActorClass._remote``, through which each creation goes, is wrapped once.

Whoever has something to do there adds a step: restart options of guarded classes, those of classes that the
plugin was told by name, the scope that an actor is made in. A step's own errors are its own: what it raises
goes to the user who creates the actor.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rayguard.ray_internals.capability import Capability

if TYPE_CHECKING:
    from typing import TypeAlias

Options = dict[str, object]
After = Callable[[object], None]  # called with the actor's handle
Step: TypeAlias = "Callable[[object, Options], tuple[Options, After | None]]"  # called with the actor class

CREATION = Capability(
    "actor creation",
    "actors get no restart options, and outlive their scope",
    {"create": "ray.actor:ActorClass._remote"},
)
_WRAPPED = "__rayguard_hook__"
_steps: dict[str, Step] = {}


def add(name: str, step: Step) -> bool:
    """Take ``step`` for each actor that this process creates, in the place of one of the same name.

    It is called with the actor class and the options of the creation; it returns the options to create it
    with, and what is to be done with the handle. The last one that was added has its say first, as if
    each were wrapped around those before. Returns False where Ray has moved the place.
    """
    _steps[name] = step
    return CREATION.replace({"create": wrapped})


def wrapped(create: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``create`` with all steps around it."""
    if hasattr(create, _WRAPPED):
        return create

    @functools.wraps(create)
    def _remote(self: object, args: object = None, kwargs: object = None, **options: object) -> object:
        afters: list[After] = []
        for step in reversed(list(_steps.values())):
            options, after = step(self, options)
            if after is not None:
                afters.insert(0, after)
        handle = create(self, args, kwargs, **options)
        for after in afters:
            after(handle)
        return handle

    setattr(_remote, _WRAPPED, True)
    return _remote
