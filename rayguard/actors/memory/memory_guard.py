"""Memory of a guarded actor or task: watched all the time, relieved between calls, told in incidents.

Here the pieces meet: ``rayguard.memory`` measures and judges, ``relief_actions`` and
``rayguard.actors.life.recycle`` act, ``rayguard.actors.life.incidents`` tell. One for each process;
started by ``rayguard.actors.guard.restarts`` when a guarded actor's life begins, by
``rayguard.actors.guard.tasks`` where one begins to run.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import replace
from functools import partial

from rayguard.actors.life import incidents, recycle
from rayguard.actors.mark import Guarding, Task
from rayguard.actors.memory import call_boundary
from rayguard.actors.memory.background_relief import BackgroundRelief
from rayguard.actors.memory.memory_incidents import ELSEWHERE, opened
from rayguard.actors.memory.relief_actions import HOOKS, ReliefActions
from rayguard.harmless import counted, harmless
from rayguard.memory.growth.finder import LeakFinder
from rayguard.memory.growth.growing import Courses, Growing
from rayguard.memory.judge import Bounds, Concern, Judge, JudgeState
from rayguard.memory.probes.sample import Probes, sources_of_an_actor
from rayguard.memory.reading import MemorySample, Quantity
from rayguard.memory.relief import COSTLY, ORDER, Need, Relief, ReliefDecision, Tried, decide
from rayguard.memory.watcher import Watcher
from rayguard.process.flight import recorder
from rayguard.recovery.incident import Incident, Outcome
from rayguard.recovery.remedy import RECYCLED, Action, Remedy
from rayguard.recovery.tally import TALLY

_log = logging.getLogger("rayguard")
_BETWEEN_LOOKS_S = 0.2  # at the ends of calls: an actor may have thousands of them a second
_QUIET_S = 60.0  # after it was said that nothing helps
_ASK_AGAIN_S = 5.0  # whether the process may be recycled: that asks every raylet
_REMEMBERED = 32
_IN_BACKGROUND = "a new engine waits for no call to end"
_NOT_HERE = "what this process holds of its own is not what is short"


class MemoryGuard:
    """Watches the memory of one actor's process, and relieves it where calls end. It is a ``Boundary``."""

    def __init__(self, instance: object, mark: Guarding, *, probes: Probes | None = None) -> None:
        policy = mark.policy.memory
        assert policy is not None
        self._instance, self._mark, self._policy = instance, mark, policy
        bounds = Bounds(
            node=policy.node,
            process_limit=policy.process_limit,
            horizon_s=policy.horizon_s,
            horizon_steps=policy.horizon_steps,
        )
        self._actions = ReliefActions(instance)
        self._watcher = Watcher(
            probes or Probes(sources_of_an_actor(), engines=self._actions.engine_processes),
            Judge(bounds),
            interval_s=policy.interval_s,
            failed=partial(counted, "memory watch"),
            changed=self._seen,
            looked=self._looked,
        )
        self._background = BackgroundRelief(
            self._actions, policy, opened=self._opened_in_background, relieved=self._watcher.relieved
        )
        self._courses, self._finder = Courses(), LeakFinder()
        self._growing: Growing | None = None
        self._found = ""
        self._lock = threading.Lock()
        self._running = 0
        self._relieving = threading.Lock()
        self._looked_at = self._quiet_until = self._ask_again_at = float("-inf")
        self._hindrance = ""
        self._tried: list[Tried] = []
        self._incident: Incident | None = None

    def start(self) -> None:
        """Begin to watch."""
        self._watcher.start()

    def close(self) -> None:
        """Watch no more, and give back what that takes."""
        self._watcher.close()
        self._finder.close()
        self._close(Outcome.FAILED)

    @property
    def idle(self) -> bool:
        """Whether no call runs now."""
        return self._running == 0

    def goes_on_for(self, task: Task, mark: Guarding) -> bool:
        """Watch on for the next task of this process; say whether its policy is the same.

        What leaks in a worker leaks over many tasks: with a new watch for each, nothing would ever grow.
        """
        if mark.policy.memory != self._policy:
            return False
        self._instance = self._actions.instance = task
        self._mark = mark
        return True

    def begun(self) -> None:
        """Count a call that begins."""
        with self._lock:
            self._running += 1

    def ended(self, instance: object, name: str) -> None:
        """Where no call runs any more: look, and relieve if there is a need."""
        with self._lock:
            self._running -= 1
            busy = self._running > 0
        if busy or instance is not self._instance or name in HOOKS or self._policy.step not in {None, name}:
            return
        if self._actions.pooled:  # what its pool calls are no steps, and other calls are rare
            return
        with harmless("memory watch"):
            self._step_ended(name)

    def _step_ended(self, name: str) -> None:
        now = time.monotonic()
        if self._policy.step is None and now - self._looked_at < _BETWEEN_LOOKS_S:
            self._watcher.step += 1
            return
        state = self._watcher.step_ended()
        self._looked_at = time.monotonic()
        self._hunt(state)
        if not state.concerns:
            self._close(Outcome.RECOVERED)
        elif self._relieving.acquire(blocking=False):
            try:
                self._relieve(state, name)
            finally:
                self._relieving.release()

    def _seen(self, sample: MemorySample, state: JudgeState) -> None:
        """Take in what the watcher saw, in whichever thread it looked; one at a time."""
        _told(sample, state)
        with harmless("leak finding"):
            self._courses.add(sample)
            # Looking for lines and holders costs: only for growth that will be the end of it.
            urgent = state.forecast is not None or bool(state.concerns)
            self._growing = next(iter(self._courses.growing()), None) if urgent else None

    def _looked(self, state: JudgeState) -> None:
        """Do what waits for no call to end, in the watcher's thread."""
        if self._relieving.acquire(blocking=False):
            try:
                self._background.looked(state)
            finally:
                self._relieving.release()

    def _opened_in_background(self, concern: Concern, relief: Relief) -> Incident:
        """Return an incident of its own: that of calls goes on until one of them ends well."""
        target = type(self._instance).__name__
        told = opened(concern, target, f"in {target}", self._found)
        return told if relief is Relief.NONE else replace(told, remedy=_remedy(relief).label)

    def _hunt(self, state: JudgeState) -> None:
        """Find out what grows: a few steps of tracing and looking, begun once growth is proven."""
        with harmless("leak finding"):
            finding = self._finder.step_ended(state.step, self._growing)
            if finding is not None:
                self._found = finding.sentence
                recorder.record_event(f"memory: {finding.sentence}")
                _log.warning("rayguard: memory grows: %s", finding.sentence)
                self._note(finding.sentence)

    def _relieve(self, state: JudgeState, name: str) -> None:
        for _ in ORDER:
            if not state.concerns:
                self._close(Outcome.RECOVERED)
                return
            concern = state.concerns[0]
            decision = self._decision(concern)
            if decision.relief is Relief.NONE:
                self._nothing_more(concern, name, decision.reason)
                return
            incident = self._opened(concern, name)
            if decision.relief is Relief.RECYCLE:
                self._recycle(incident)
                return
            self._enact(decision.relief, concern.need)
            state = self._watcher.relieved()

    def _decision(self, concern: Concern) -> ReliefDecision:
        """Decide; whether the process may be recycled is asked last, and only if it comes to that."""
        closed = self._actions.cannot()
        if concern.quantity in ELSEWHERE:
            closed |= dict.fromkeys(COSTLY, _NOT_HERE)
        closed[Relief.ENGINE] = _IN_BACKGROUND
        now = time.monotonic()
        decision = decide(concern.need, self._tried, closed, now)
        if decision.relief is not Relief.RECYCLE:
            return decision
        if now >= self._ask_again_at:
            self._hindrance = recycle.hindrance(self._instance, self._mark, time.time())
            self._ask_again_at = now + _ASK_AGAIN_S
        if not self._hindrance:
            return decision
        return decide(concern.need, self._tried, {**closed, Relief.RECYCLE: self._hindrance}, now)

    def _nothing_more(self, concern: Concern, name: str, reason: str) -> None:
        """Say so where it is urgent, once a minute; the next call may find something that helps."""
        if concern.need.urgent and time.monotonic() >= self._quiet_until:
            self._quiet_until = time.monotonic() + _QUIET_S
            self._opened(concern, name)
            self._note(f"nothing more can be done: {reason}")
            self._close(Outcome.FAILED)
        elif self._incident is not None and not concern.need.urgent:
            self._close(Outcome.RECOVERED)

    def _enact(self, relief: Relief, need: Need) -> None:
        done = self._actions.enact(relief, need)
        self._tried = [*self._tried, done][-_REMEMBERED:]
        TALLY.relieved(relief.value, done.freed)
        recorder.record_event(f"memory: {done}")
        self._note(str(done))
        if self._incident is not None:
            self._incident = replace(self._incident, remedy=_remedy(relief).label)

    def _recycle(self, incident: Incident) -> None:
        notes = (*incident.notes, "the process is recycled at the end of this call; its state moves along")
        told = replace(incident, remedy=RECYCLED.label, notes=notes)
        TALLY.relieved(Relief.RECYCLE.value, 0)
        try:
            recycle.recycle(self._instance, self._mark, told, time.time())
        except Exception as error:
            self._note(f"it could not be recycled: {type(error).__name__}: {error}")
            self._close(Outcome.FAILED)
            self._quiet_until = time.monotonic() + _QUIET_S
            raise

    # -- the incident: one for a concern, from its first relief until it is over

    def _opened(self, concern: Concern, name: str) -> Incident:
        if self._incident is None:
            where = f"at the end of {type(self._instance).__name__}.{name}"
            self._incident = opened(concern, type(self._instance).__name__, where, self._found)
        return self._incident

    def _note(self, line: str) -> None:
        if self._incident is not None:
            self._incident = replace(self._incident, notes=(*self._incident.notes, line))

    def _close(self, outcome: Outcome) -> None:
        incident, self._incident = self._incident, None
        if incident is not None:
            incidents.record(incidents.closed(incident, outcome, served=outcome is Outcome.RECOVERED))


def watch(instance: object, mark: Guarding) -> None:
    """Watch the memory of this process for ``instance``, as its policy says; once in a process.

    The watch of a task that has ended goes on for the next one, unless that has another policy.
    """
    before = call_boundary.watch
    if isinstance(instance, Task) and isinstance(before, MemoryGuard) and before.idle:
        if before.goes_on_for(instance, mark):
            return
        call_boundary.watch = None
        before.close()
    if mark.policy.memory is None or call_boundary.watch is not None:
        return
    guard = MemoryGuard(instance, mark)
    guard.start()
    call_boundary.watch = guard


def _remedy(relief: Relief) -> Remedy:
    return Remedy(action=Action.RELIEVE, added=relief.value)


def _told(sample: MemorySample, state: JudgeState) -> None:
    """Let recorder and metrics know; both take numbers only."""
    shared = sum(r.used for r in sample.readings if r.quantity is Quantity.MAPPED)
    node = next((r.share for r in sample.readings if r.quantity is Quantity.NODE), None)
    recorder.record_memory(private=state.private, shared=shared, node_ratio=node, step=state.step)
    forecast_s = None if state.forecast is None else state.forecast.in_s
    TALLY.memory_is(private=state.private, engine=state.engine, forecast_s=forecast_s)
