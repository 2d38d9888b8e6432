"""Has every trainer of a process begin with the callback, without a line of its user's."""

from __future__ import annotations

import logging
from importlib import import_module
from typing import TYPE_CHECKING

from rayguard.frameworks.trl import Callback

if TYPE_CHECKING:
    from types import ModuleType

_log = logging.getLogger("rayguard")


def add_to_every_trainer(module: ModuleType) -> None:
    """Put it among the callbacks that each trainer has: ``module`` is ``transformers.trainer``."""
    standard = getattr(module, "DEFAULT_CALLBACKS", None)
    if not isinstance(standard, list):
        _log.warning(
            "rayguard does not know this transformers: %s has no list DEFAULT_CALLBACKS, so trainers are "
            "guarded only where the callback is given to them",
            module.__name__,
        )
    elif Callback not in standard:
        standard.append(Callback)


def add_anew(_patcher: ModuleType) -> None:
    """The same, once ms-swift has put a list of its own in that one's place (``swift.trainers.patcher``)."""
    add_to_every_trainer(import_module("transformers.trainer"))
