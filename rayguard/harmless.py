"""The promise *never worse* in one place: what goes wrong inside the guard stays inside the guard.

Loads the standard library only: it is there as a worker starts, before anything else of rayguard. What is
counted here is a part of the process's numbers (``rayguard.recovery.tally``).
"""

from __future__ import annotations

import logging
import os
import threading
from collections import Counter
from typing import TYPE_CHECKING

from rayguard.errors import CapabilityOffError

if TYPE_CHECKING:
    from types import TracebackType

_log = logging.getLogger("rayguard")
# An RLock: a signal handler or finalizer that counts while its own thread is counting must not hang.
_lock = threading.RLock()
errors: Counter[str] = Counter()  # of this process, by the piece of rayguard that failed


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
        if isinstance(error, CapabilityOffError):  # it was said once; here, it would be said at each call
            return True
        count(self._piece)
        _log.warning("rayguard's %s failed; the user's call goes on without it", self._piece, exc_info=error)
        return True


def counted(piece: str, error: Exception) -> None:
    """Log and count an error that a thread or a callback of ``piece`` hands over."""
    with harmless(piece):
        raise error


def count(piece: str, into: Counter[str] | None = None) -> None:
    """Count an error of ``piece`` that was logged where it was caught."""
    with _lock:
        (errors if into is None else into)[piece] += 1


def _begin_again() -> None:
    """In a forked child: it counts its own errors, and inherits no lock that is held."""
    global _lock  # noqa: PLW0603 - one taken by another thread of the parent never opens
    _lock = threading.RLock()
    errors.clear()


os.register_at_fork(after_in_child=_begin_again)
