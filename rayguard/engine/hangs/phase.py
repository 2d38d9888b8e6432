"""Which phase of its work an engine is in, and who else may be the reason that nothing comes out of it.

Pure: what the watch has read in, the watchdog's word out.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rayguard.engine.protocol import Progress

LARGER = 2  # times as many prompt tokens as it has computed between two looks: nothing new to its pace


class Phase(str, Enum):
    """What an engine is doing, as far as its owner knows; the later, the longer it may be silent."""

    IDLE = "idle"  # nothing to do
    DECODE = "decode"  # tokens to make, and no prompts beyond what it is known to do between two looks
    PREFILL = "prefill"  # prompts that may take it longer, or nobody knows
    LOAD = "load"  # the first requests after a start
    CALL = "call"  # it was asked for something that is no request: a weight push above all
    AWAY = "away"  # its owner paused it, or does not read what it answers


_PATIENCE = {Phase.DECODE: 0, Phase.PREFILL: 1, Phase.LOAD: 2}


def patient(one: Phase, other: Phase) -> Phase:
    """Return the one in which an engine may be silent for longer."""
    return max(one, other, key=lambda phase: _PATIENCE.get(phase, -1))


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
