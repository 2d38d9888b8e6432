"""What each rank gets of what differs between them: ``TrainerGang.call(each=...)``. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rayguard.errors import ConfigError


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
