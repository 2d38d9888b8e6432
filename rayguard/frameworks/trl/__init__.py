"""TRL: one line for a trainer, ``callbacks=[rayguard.frameworks.trl.Callback()]``.

Importing this imports nothing of TRL; the class is made of transformers' own when it is asked for.
"""

from __future__ import annotations

from functools import lru_cache
from importlib import import_module


@lru_cache(maxsize=1)
def _callback() -> type:
    from rayguard.frameworks.trainer_callback import callback_class  # noqa: PLC0415 - see above

    base = import_module("transformers").TrainerCallback
    return callback_class(base, __module__=__name__)


def __getattr__(name: str) -> type:
    """Return ``Callback``: ``rayguard.frameworks.trainer_callback.TrainerGuard`` with its options."""
    if name != "Callback":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _callback()
