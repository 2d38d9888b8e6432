"""A class that owns an engine but has no recipe, or none of the right form: told where its actor is created.

Not in a worker's log, that is. What else is wrong with a recipe is ``rayguard.engine.build.recipe``'s.
"""

from __future__ import annotations

import inspect
from types import FunctionType
from typing import TYPE_CHECKING

from rayguard.errors import ConfigError
from rayguard.harmless import harmless
from rayguard.options import nearest
from rayguard.ray_internals import actor_classes, actor_creation
from rayguard.ray_internals.module_names import user_class

if TYPE_CHECKING:
    from rayguard.ray_internals.actor_creation import After, Options

_MIXINS = "rayguard.actors.guard.mixins"
_RECIPE, _START = "build_engine", "start_engine"


def what_to_write(cls: type) -> str:
    """Return what to write where ``cls`` has no recipe for its engine."""
    own = [name for name in vars(cls) if not name.startswith("__") and callable(vars(cls)[name])]
    near = nearest(_RECIPE, own)
    named = f" (its {near} is not called by that name)" if near else ""
    return (
        f"{cls.__qualname__} needs build_engine, which returns its engine{named}. Write `def build_engine("
        "self, settings): from vllm import LLM; return LLM(**settings.as_kwargs(model=...))`"
    )


def install() -> None:
    """Have the actors that this process creates looked at; harmless where Ray is not there."""
    with harmless("options"):
        actor_creation.add("engine recipe", _before)


def _before(actor_class: object, options: Options) -> tuple[Options, After | None]:
    wrong: ConfigError | None = None
    with harmless("options"):
        modified = actor_classes.modified_class(actor_class)
        cls = None if modified is None else user_class(modified)
        if cls is not None and _starts(cls):
            wrong = found_wrong(cls)
    if wrong is not None:
        raise wrong
    return options, None


def found_wrong(cls: type) -> ConfigError | None:
    """Return what is wrong with the recipe of ``cls``: there is none, or it cannot be called."""
    recipe = inspect.getattr_static(cls, _RECIPE, None)
    if getattr(recipe, "__module__", "") == _MIXINS:
        return ConfigError(what_to_write(cls))
    if isinstance(recipe, FunctionType):
        from rayguard.engine.build.recipe import refuse_form  # noqa: PLC0415 - only where engines are started

        try:
            refuse_form(recipe, cls)
        except ConfigError as error:
            return error
    return None


def _starts(cls: type) -> bool:
    """Say whether ``__init__`` is to start an engine."""
    init = getattr(cls, "__init__", None)
    while init is not None and hasattr(init, "__wrapped__"):
        init = init.__wrapped__
    return _START in getattr(getattr(init, "__code__", None), "co_names", ())
