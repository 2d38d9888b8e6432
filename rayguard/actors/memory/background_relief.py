"""Reliefs that wait for no call to end: a new engine, and an actor that asks its pool to be replaced.

They are carried out in the watcher's own thread. What needs the end of a call is in
``rayguard.actors.memory.memory_guard``.
"""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from rayguard.actors.life import incidents
from rayguard.harmless import harmless
from rayguard.memory.reading import Quantity
from rayguard.memory.relief import Relief, Tried, decide
from rayguard.process.flight import recorder
from rayguard.recovery.incident import Incident, Outcome
from rayguard.recovery.tally import TALLY

if TYPE_CHECKING:
    from collections.abc import Callable

    from rayguard.actors.memory.relief_actions import ReliefActions
    from rayguard.memory.judge import Concern, JudgeState
    from rayguard.recovery.memory_policy import MemoryPolicy

_log = logging.getLogger("rayguard")
_OURS = frozenset({Quantity.PRIVATE, Quantity.ENGINE, Quantity.NODE})
_AT_AN_END = "that is for the end of a call"
_OF_THE_ENGINE = "that is for the memory of this process"


class BackgroundRelief:
    """Acts on what the watcher saw, for one process. ``opened`` makes an incident of a concern."""

    def __init__(
        self,
        actions: ReliefActions,
        policy: MemoryPolicy,
        *,
        opened: Callable[[Concern, Relief], Incident],
        relieved: Callable[[], JudgeState],
    ) -> None:
        self._actions, self._policy = actions, policy
        self._opened, self._relieved = opened, relieved
        self._tried: list[Tried] = []
        self._renewed: tuple[float, ...] = ()
        self._asked = self._helpless = False

    def looked(self, state: JudgeState) -> None:
        """Do what can be done beside calls; its own errors are logged and counted."""
        with harmless("memory watch"):
            if not any(concern.need.urgent for concern in state.concerns):
                self._helpless = False
                if self._asked:
                    self._asked = False
                    self._actions.ask_to_leave("")  # another one went, or it let go of something
            for concern in state.concerns:
                if concern.quantity in _OURS and self._relieve(concern):
                    return

    def _relieve(self, concern: Concern) -> bool:
        """Say whether something was done; then the watch looks again before anything else is."""
        now = time.monotonic()
        relief, reason = decide(concern.need, self._tried, self._closed(concern), now)
        if relief is Relief.NONE:
            self._nothing_more(concern, reason)
            return False
        if relief is Relief.RECYCLE:
            self._leave(concern)
            return True
        incident = self._opened(concern, relief) if relief is Relief.ENGINE else None
        if relief is Relief.ENGINE:
            self._renewed = (*self._policy.recycle_budget.recent(self._renewed, now), now)
        done = self._actions.enact(relief, concern.need)
        self._tried = [*self._tried, done][-len(Relief) :]
        TALLY.relieved(relief.value, done.freed)
        recorder.record_event(f"memory: {done}")
        if incident is not None:
            _log.warning("rayguard: %s: %s", concern.why, done)
            _record(incident, str(done), Outcome.RECOVERED if done.freed else Outcome.FAILED)
        self._relieved()
        return True

    def _nothing_more(self, concern: Concern, reason: str) -> None:
        """Say so once while it is urgent. Who is in no pool says it at the end of a call."""
        if self._actions.pooled and concern.need.urgent and not self._asked and not self._helpless:
            self._helpless = True
            note = f"nothing more can be done: {reason}"
            _record(self._opened(concern, Relief.NONE), note, Outcome.FAILED)

    def _closed(self, concern: Concern) -> dict[Relief, str]:
        closed = dict.fromkeys((Relief.FREE, Relief.REDUCE), _AT_AN_END)
        if concern.quantity is Quantity.ENGINE:
            closed[Relief.COLLECT] = _OF_THE_ENGINE
        if not self._actions.pooled:
            closed |= dict.fromkeys((Relief.COLLECT, Relief.RECYCLE), _AT_AN_END)
        elif self._asked:
            closed[Relief.RECYCLE] = "its pool knows"
        budget = self._policy.recycle_budget
        if not budget.allows(self._renewed, time.monotonic()):
            closed[Relief.ENGINE] = f"there were {budget.max_restarts} within {budget.within_s:.0f} s already"
        return closed

    def _leave(self, concern: Concern) -> None:
        self._asked = True
        self._actions.ask_to_leave(concern.why)
        TALLY.relieved(Relief.RECYCLE.value, 0)
        note = "its pool was asked to replace this actor; its requests go on elsewhere"
        _record(self._opened(concern, Relief.RECYCLE), note, Outcome.RECOVERED)


def _record(incident: Incident, note: str, outcome: Outcome) -> None:
    told = replace(incident, notes=(*incident.notes, note))
    incidents.record(incidents.closed(told, outcome, served=outcome is Outcome.RECOVERED))
