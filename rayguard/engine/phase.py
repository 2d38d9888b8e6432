"""Which phase of its work an engine is in, and who else may be the reason that nothing comes out of it.

Pure: what the watch has read in, the watchdog's word out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rayguard.process.watchdog import Phase

if TYPE_CHECKING:
    from rayguard.engine.protocol import Progress

LARGER = 2  # times as many prompt tokens as it has computed between two looks: nothing new to its pace


def phase_of(progress: Progress, *, before: Progress, most: int, owner_reads: bool) -> Phase:
    """Return the phase that ``progress`` shows. ``before`` is what was seen one look earlier.

    ``most`` is how many prompt tokens the engine is known to have computed between two looks. A prompt, or a
    queue of them, within that is part of the pace of decoding: an engine under load always has a queue.
    """
    if not owner_reads or (progress.unread and progress.turns == before.turns):
        return Phase.AWAY
    if progress.asked:
        return Phase.CALL
    if not progress.running:
        return Phase.IDLE
    if progress.paused:
        return Phase.AWAY
    if progress.beginning is None or (progress.beginning and progress.ahead > LARGER * most):
        return Phase.PREFILL
    return Phase.DECODE


def signs(progress: Progress, before: Progress) -> int:
    """Return how many signs of life came since ``before``: turns, and answers to calls."""
    return progress.turns - before.turns + max(0, before.asked - progress.asked)
