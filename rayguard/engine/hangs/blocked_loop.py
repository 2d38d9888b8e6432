"""An event loop that its owner's own code blocks: told apart from a hung engine, and said once.

A loop that user code blocks reads nothing and answers nobody, and looks from outside like an engine that is
silent. Nothing is restarted for it, and nothing can unblock it: the engine has answered, and nobody reads.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
import traceback
from typing import TYPE_CHECKING

from rayguard.faults.diagnosis import Kind, Scope
from rayguard.harmless import harmless
from rayguard.recovery.incident import Incident, Outcome

if TYPE_CHECKING:
    from collections.abc import Callable
    from traceback import FrameSummary
    from types import FrameType

    from rayguard.engine.context import Surroundings

_log = logging.getLogger("rayguard")
LATE_S = 2.0  # a loop that has not turned for so long reads nothing; shorter work only slows it
MAX_FRAMES = 32
_CALLS = "asyncio/events.py"
PAUSE_S = 2.5  # who asks is meant to ask twice a second: past this, it was paused, and the loop with it
MAX_PLACES = 100  # that were told, for one engine
_ADVICE = (
    "move the work off the event loop (await asyncio.to_thread(...)): while it runs, nothing else of it does"
)


class BlockedLoop:
    """Watches the loop of one engine's owner."""

    def __init__(self, told_after_s: float, around: Surroundings | None) -> None:
        self._told_after_s = told_after_s
        self._around = around
        self._pulse: LoopPulse | None = None
        self._told: set[str] = set()

    def reads(self, loop: object, waiting: int) -> bool:
        """Say whether the owner reads what the engine sends; True where no loop does the reading."""
        if not isinstance(loop, asyncio.AbstractEventLoop):
            return True
        if self._pulse is None or self._pulse.loop is not loop:
            self._pulse = LoopPulse(loop)
        if not self._pulse.turns():
            return False
        late_s = self._pulse.late_s()
        if late_s >= self._told_after_s:
            with harmless("blocked"):
                self._say(self._pulse.stands(), late_s, waiting)
        return late_s < LATE_S

    def _say(self, frames: tuple[FrameSummary, ...], late_s: float, waiting: int) -> None:
        own = [f for f in frames if "/lib/python" not in f.filename and "-packages/" not in f.filename]
        shown = own or list(frames)
        if not shown or len(self._told) >= MAX_PLACES:
            return
        # By what the loop called, which is the same wherever inside of it we happen to look.
        called = f"{shown[0].filename}:{shown[0].name}"
        if called in self._told:
            return
        self._told.add(called)
        place = f"{shown[-1].name} ({shown[-1].filename}:{shown[-1].lineno})"
        cause = f"the event loop was blocked for {late_s:.0f} s by {place} while {waiting} requests waited"
        _log.warning("rayguard: %s; %s", cause, _ADVICE)
        if self._around is None:
            return
        incident = Incident(
            kind=Kind.USER_CODE.value,
            scope=Scope.CODE.value,
            cause=cause,
            signature="owner.blocked_loop",
            confidence=0.95,
            advice=_ADVICE,
            detect_s=late_s,
            remedy="none",
            requests=waiting,
            outcome=Outcome.ANSWERED,
            notes=tuple(f"{f.name} ({f.filename}:{f.lineno})" for f in reversed(frames)),
        )
        self._around.noticed(incident)


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

    def stands(self) -> tuple[FrameSummary, ...]:
        """Return the innermost frames of the loop's thread now, outermost first; none where it is unknown.

        Only what the loop called, where that can be told.
        """
        frames_by_thread = sys._current_frames()  # noqa: SLF001 - the documented way to ask
        running = (frame for frame in frames_by_thread.values() if _runs(frame, self.loop))
        frame = frames_by_thread.get(self._thread) or next(running, None)
        if frame is None:
            return ()
        frames = traceback.extract_stack(frame, limit=200)
        called = [at for at, f in enumerate(frames) if f.name == "_run" and f.filename.endswith(_CALLS)]
        return tuple(frames[called[-1] + 1 :][-MAX_FRAMES:] if called else frames[-MAX_FRAMES:])


def _runs(frame: FrameType, loop: asyncio.AbstractEventLoop) -> bool:
    """Say whether ``loop`` runs in this stack: known before its first beat, too."""
    stack = (one for one, _ in traceback.walk_stack(frame) if one.f_code.co_name == "run_forever")
    return any(one.f_locals.get("self") is loop for one in stack)
