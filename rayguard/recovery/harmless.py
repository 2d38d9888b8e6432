"""The promise *never worse* in one place: what goes wrong inside the guard stays inside the guard."""

from __future__ import annotations

from rayguard.recovery.tally import TALLY
from rayguard.swallow import Swallow


class harmless(Swallow):  # noqa: N801 - reads as a statement: ``with harmless("journal"):``
    """Run a piece of rayguard beside a user's call: its own errors are logged and counted, never raised."""

    def count(self, piece: str) -> None:
        """Count it with the process's errors."""
        TALLY.guard_error(piece)


def counted(piece: str, error: Exception) -> None:
    """Log and count an error that a thread or a callback of ``piece`` hands over."""
    with harmless(piece):
        raise error
