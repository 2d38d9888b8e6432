"""The promise *never worse* in one place: what goes wrong inside the guard stays inside the guard.

Loads the standard library only: it is there as a worker starts, before anything else of rayguard. What is
counted here is a part of the process's numbers (``rayguard.recovery.tally``).
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import threading
from collections import Counter
from typing import TYPE_CHECKING

from rayguard.errors import CapabilityOffError
from rayguard.home import home

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

_log = logging.getLogger("rayguard")
# An RLock: a signal handler or finalizer that counts while its own thread is counting must not hang.
_lock = threading.RLock()
errors: Counter[str] = Counter()  # of this process, by the piece of rayguard that failed
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS})
_OPENS_HOME = "rayguard/private.py"  # through which all goes that is written there
_said_of_homes: set[tuple[str, int]] = set()


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
        if isinstance(error, OSError) and not_written(error):
            if is_news(error, home()):
                _log.warning(
                    "rayguard: nothing can be written in %s (%s), so what it keeps there is missing, first "
                    "its %s. The user's call goes on; this is said once",
                    home(),
                    error.strerror or error,
                    self._piece,
                )
            return True
        _log.warning("rayguard's %s failed; the user's call goes on without it", self._piece, exc_info=error)
        return True


def not_written(error: OSError) -> bool:
    """Say whether the disk took nothing (full, read-only), or rayguard's home cannot be opened."""
    trace = error.__traceback__
    while error.errno not in _FULL and trace is not None:
        if trace.tb_frame.f_code.co_filename.endswith(_OPENS_HOME):
            return True
        trace = trace.tb_next
    return error.errno in _FULL


def is_news(error: OSError, directory: Path) -> bool:
    """Say whether it is the first time here that this home cannot be written for this reason.

    A dozen pieces of rayguard write there, each again and again: one line tells it.
    """
    key = str(directory), error.errno or 0
    with _lock:
        news = key not in _said_of_homes
        _said_of_homes.add(key)
    return news


def counted(piece: str, error: Exception) -> None:
    """Log and count an error that a thread or a callback of ``piece`` hands over."""
    with harmless(piece):
        raise error


def count(piece: str, into: Counter[str] | None = None) -> None:
    """Count an error of ``piece`` that was logged where it was caught."""
    with _lock:
        (errors if into is None else into)[piece] += 1


def _cleaned(record: logging.LogRecord) -> bool:
    """Take secrets and prompts out of a line of rayguard's log before any handler has it; lose none."""
    with contextlib.suppress(Exception):
        from rayguard.redact import without_secrets  # noqa: PLC0415 - only where there is something to say

        record.msg, record.args = without_secrets(record.getMessage()), ()
        if record.exc_info and not record.exc_text:
            record.exc_text = without_secrets(logging.Formatter().formatException(record.exc_info))
    return True


def _begin_again() -> None:
    """In a forked child: it counts its own errors, and inherits no lock that is held."""
    global _lock  # noqa: PLW0603 - one taken by another thread of the parent never opens
    _lock = threading.RLock()
    errors.clear()
    _said_of_homes.clear()


_log.addFilter(_cleaned)
os.register_at_fork(after_in_child=_begin_again)
