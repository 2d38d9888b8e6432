"""Whether an event loop of this process turns, seen from another thread, and where it stands if it does not.

A loop that user code blocks reads nothing and answers nobody, and looks from outside like an engine that is
silent. Does not unblock it: nothing can.
"""

from __future__ import annotations

import sys
import threading
import time
import traceback
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

MAX_FRAMES = 32
_CALLS = "asyncio/events.py"
PAUSE_S = 2.5  # who asks is meant to ask twice a second: past this, it was paused, and the loop with it


class LoopPulse:
    """Feels the pulse of one loop: each ``late_s`` asks it for a beat if none is under way."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Callable[[], float] = time.monotonic) -> None:
        self.loop = loop
        self._clock = clock
        self._asked_s: float | None = None  # when the beat that has not come was asked for
        self._looked_s = clock()
        self._thread = 0  # that the loop ran on last

    def late_s(self) -> float:
        """Return for how long the loop has not turned; 0 while it does."""
        now, before = self._clock(), self._looked_s
        self._looked_s = now
        if self._asked_s is not None and now - before <= PAUSE_S:
            return now - self._asked_s
        try:
            self._asked_s = now
            self.loop.call_soon_threadsafe(self._beat)
        except RuntimeError:  # closed
            self._asked_s = None
        return 0.0

    def turns(self) -> bool:
        """Say whether somebody runs the loop at all: between two ``run_until_complete`` nobody does."""
        if not self.loop.is_running():
            self._asked_s = None
            return False
        return True

    def _beat(self) -> None:
        self._asked_s = None
        self._thread = threading.get_ident()

    def stands(self) -> tuple[traceback.FrameSummary, ...]:
        """Return the innermost frames of the loop's thread now, outermost first; none where it is unknown.

        Only what the loop called, where that can be told.
        """
        thread = self._thread or getattr(self.loop, "_thread_id", None) or 0
        frame = sys._current_frames().get(thread)  # noqa: SLF001 - the documented way to ask
        if frame is None:
            return ()
        frames = traceback.extract_stack(frame, limit=200)
        called = [at for at, f in enumerate(frames) if f.name == "_run" and f.filename.endswith(_CALLS)]
        return tuple(frames[called[-1] + 1 :][-MAX_FRAMES:] if called else frames[-MAX_FRAMES:])
