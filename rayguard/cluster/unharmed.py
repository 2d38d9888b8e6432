"""*Never worse* where nothing of rayguard may be loaded yet: as a worker starts, as an actor is created."""

from __future__ import annotations

import sys

from rayguard.swallow import Swallow

errors: list[str] = []  # the pieces that failed, until there is a tally that counts them


class unharmed(Swallow):  # noqa: N801 - reads as a statement: ``with unharmed("hook"):``
    """Run a piece of rayguard beside the user's work: its own errors are logged and kept, never raised."""

    def count(self, piece: str) -> None:
        """Count it, or keep it for the tally of this process where that is not loaded yet."""
        tally = getattr(sys.modules.get("rayguard.recovery.tally"), "TALLY", None)
        if tally is None:
            errors.append(piece)
        else:
            tally.guard_error(piece)
