"""What goes wrong inside the guard stays inside the guard: the statement that other modules build on."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType

_log = logging.getLogger("rayguard")


class Swallow:
    """Run a piece of rayguard beside a user's call: its own errors are logged and counted, never raised.

    A class and not a generator, so that type checkers know that it swallows.
    """

    def __init__(self, piece: str) -> None:
        self._piece = piece

    def count(self, piece: str) -> None:
        """Count an error of ``piece``, where this statement's are counted."""
        raise NotImplementedError

    def __enter__(self) -> None:
        return

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _tb: TracebackType | None
    ) -> bool:
        if not isinstance(error, Exception):
            return False
        self.count(self._piece)
        _log.warning("rayguard's %s failed; the user's call goes on without it", self._piece, exc_info=error)
        return True
