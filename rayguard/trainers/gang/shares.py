"""What may be called on the ranks of a gang, and what each gets of what differs between them. Pure."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from rayguard.errors import ConfigError
from rayguard.options import meant

_NOT_RUN = {
    "a coroutine (async def)": inspect.iscoroutinefunction,
    "a generator (it has a yield)": inspect.isgeneratorfunction,
    "an asynchronous generator": inspect.isasyncgenfunction,
}


def checked_method(trainer: type, name: object) -> str:
    """Return the name of a method that a gang may call.

    Raises:
        ConfigError: There is none of that name, or it is the gang's own.
    """
    if not isinstance(name, str):
        raise ConfigError(f"TrainerGang.call takes the name of a method, got {name!r}")
    if name.startswith("_") or name == "setup":
        raise ConfigError(f"{trainer.__name__}.{name} is not for TrainerGang.call: the gang itself calls it")
    if not callable(getattr(trainer, name, None)):
        known = [one for one in dir(trainer) if not one.startswith("_") and callable(getattr(trainer, one))]
        raise ConfigError(f"{trainer.__name__} has no method {name!r}{meant(name, known)}")
    refuse_unawaited(trainer, name)
    return name


def refuse_unawaited(trainer: type, name: str) -> None:
    """Refuse what a rank would begin, and nobody would go through.

    Raises:
        ConfigError: The method is a coroutine or a generator.
    """
    method = getattr(trainer, name)
    for kind, known in _NOT_RUN.items():
        if known(method):
            raise ConfigError(
                f"{trainer.__name__}.{name} is {kind}: a gang's ranks run plain methods, and would only "
                "begin it. Write def, and return what the caller is to have (asyncio.run goes through "
                "a coroutine)"
            )


def shares_of(each: object, size: int) -> list[tuple[object, ...]]:
    """Return one more argument for each of ``size`` ranks: none, or a part of ``each``.

    ``each`` is a sequence of that length, a ``BatchChunks`` (planned anew for another size), or a function
    that returns a sequence for a size.

    Raises:
        ConfigError: It is something else, or of another length.
    """
    if each is None:
        return [()] * size
    if hasattr(each, "over") and isinstance(each, Sequence):
        planned: Any = each
        each = planned if len(planned) == size else planned.over(size)
    elif callable(each):
        each = each(size)
    if isinstance(each, (str, bytes)) or not isinstance(each, Sequence):
        raise ConfigError(
            f"each= takes one argument for each of the {size} ranks: a list, rayguard.split_batch(...), or a "
            f"function that returns one for a number of ranks; got {type(each).__name__}"
        )
    if len(each) != size:
        raise ConfigError(
            f"each= has {len(each)} arguments, and the gang has {size} ranks: rayguard.split_batch(batch, "
            f"world={size}) shares any batch out, and is planned anew by itself when a gang shrinks"
        )
    return [(one,) for one in each]
