"""The promise *never worse* in one place: what goes wrong inside the guard stays inside the guard."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from rayguard.recovery.tally import TALLY

if TYPE_CHECKING:
    from types import TracebackType

_log = logging.getLogger("rayguard")


class harmless:  # noqa: N801 - reads as a statement: ``with harmless("journal"):``
    """Run a piece of rayguard beside a user's call: its own errors are logged and counted, never raised.

    A class and not a generator, so that type checkers know that it swallows.
    """

    def __init__(self, piece: str) -> None:
        self._piece = piece

    def __enter__(self) -> None:
        return

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _tb: TracebackType | None
    ) -> bool:
        if not isinstance(error, Exception):
            return False
        TALLY.guard_error(self._piece)
        _log.warning("rayguard's %s failed; the user's call goes on without it", self._piece, exc_info=error)
        return True


def counted(piece: str, error: Exception) -> None:
    """Log and count an error that a thread or a callback of ``piece`` hands over."""
    with harmless(piece):
        raise error
