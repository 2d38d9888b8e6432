"""An event loop that its owner's own code blocks: told apart from a hung engine, and said once.

Nothing is restarted for it: the engine has answered, and nobody reads. Whether a loop turns is read by
``rayguard.process.loops``.
"""

from __future__ import annotations

import logging
import uuid
from typing import TYPE_CHECKING, Any

from rayguard.faults.diagnosis import Kind, Scope
from rayguard.process.loops import LoopPulse
from rayguard.recovery.harmless import harmless
from rayguard.recovery.incident import Incident, Outcome
from rayguard.recovery.tally import TALLY

if TYPE_CHECKING:
    from traceback import FrameSummary

    from rayguard.engine.surroundings import Surroundings

_log = logging.getLogger("rayguard")
LATE_S = 2.0  # a loop that has not turned for so long reads nothing; shorter work only slows it
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

    def reads(self, loop: Any, waiting: int) -> bool:
        """Say whether the owner reads what the engine sends; True where no loop does the reading."""
        if loop is None:
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
        around = self._around
        if around is None:
            return
        now = around.now()
        incident = Incident(
            id=uuid.uuid4().hex[:12],
            kind=Kind.USER_CODE.value,
            scope=Scope.CODE.value,
            cause=cause,
            signature="owner.blocked_loop",
            confidence=0.95,
            advice=_ADVICE,
            detected_at=now,
            closed_at=now,
            detect_s=late_s,
            remedy="none",
            requests=waiting,
            outcome=Outcome.ANSWERED,
            notes=tuple(f"{f.name} ({f.filename}:{f.lineno})" for f in reversed(frames)),
        )
        incident = around.signed(incident)
        around.write(incident)
        TALLY.closed(incident)
