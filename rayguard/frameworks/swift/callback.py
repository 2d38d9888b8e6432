"""The callback as ms-swift makes it: by name, with the arguments of the run and its trainer."""

from __future__ import annotations

import logging
from importlib import import_module
from typing import TYPE_CHECKING

from rayguard.frameworks.trainer_callback import TrainerGuard, callback_class

if TYPE_CHECKING:
    from types import ModuleType

NAME = "rayguard"
_log = logging.getLogger("rayguard")


def register(module: ModuleType) -> None:
    """Have ``--callbacks rayguard`` find it: ``module`` is ``swift.callbacks.mapping``."""
    known = getattr(module, "callbacks_map", None)
    if not isinstance(known, dict):
        _log.warning("rayguard does not know this ms-swift: %s has no callbacks_map", module.__name__)
        return
    known.setdefault(NAME, _made())


def _made() -> type:
    def begin(self: TrainerGuard, args: object, trainer: object) -> None:
        TrainerGuard.__init__(self)
        setattr(self, "args", args)  # noqa: B010 - as its base class has them
        setattr(self, "trainer", trainer)  # noqa: B010

    base = import_module("transformers").TrainerCallback
    return callback_class(base, __init__=begin, __module__=__name__)
