"""Which safe setting comes next, when a diagnosis names no cure of its own.

A rung is the *name* of a safe setting; what it means to an engine is ``rayguard.engine.settings``.
"""

from __future__ import annotations

from dataclasses import dataclass

from rayguard.options import explained

SAME_SETTINGS = "same_settings"


@explained
@dataclass(frozen=True, slots=True)
class Ladder:
    """Safe settings from cheap to costly.

    Invariant: settings are only added, never swapped: more failures never mean fewer safe settings.
    """

    rungs: tuple[str, ...] = (
        "async_scheduling_off",
        "chunked_prefill_off",
        "prefix_caching_off",
        "eager",
        "fewer_sequences",
        "one_sequence",
    )

    def next(self, applied: tuple[str, ...], cures: tuple[str, ...] = ()) -> str | None:
        """Return the cheapest cure not yet applied, else the first rung not yet applied, else None."""
        for name in (*cures, *self.rungs):
            if name not in applied:
                return name
        return None
