"""Whether an actor that does not answer its pool is frozen: what was seen in, verdict out.

Pure. An actor answers every ``connection.POLL_S``. One that is stopped (SIGSTOP) never will; one that
computes may only have its event loop blocked, while its engine works on; and when the pool itself stood
still, nobody is to blame.
"""

from __future__ import annotations

from enum import Enum

TICK_S = 0.5
PAUSED = 4.0  # a tick that comes this many times late: it was us
_FAR_S = 30.0  # no process to look at: another node


class FreezeVerdict(str, Enum):
    """What is known of a silent actor."""

    FINE = "fine"
    FROZEN = "frozen"
    SILENT = "silent"


def judge(silent_s: float, state: str | None, stopped_s: float, busy_s: float) -> FreezeVerdict:
    """Return the verdict on an actor that is ``silent_s`` overdue.

    ``state`` is the kernel's letter of its process, '' for one that is gone, None where it cannot be seen.
    """
    far_s = max(_FAR_S, stopped_s)
    if silent_s < {"T": stopped_s, "t": stopped_s, "": stopped_s, None: far_s}.get(state, busy_s):
        return FreezeVerdict.FINE
    return FreezeVerdict.FROZEN if state in {"T", "t"} else FreezeVerdict.SILENT
