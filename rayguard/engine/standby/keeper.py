"""Keeps one more engine ready: built, loaded, at the current weights, and without a single request.

All that takes time happens in one thread beside the engine that serves: ending engines that were replaced,
building the standby, pushing weights to it. What fails there is logged, counted and tried again after growing
pauses; the engine that serves never notices. Which step comes next is decided in ``plan``; taking over
is ``rayguard.engine.supervision.lifecycle``.

A standby waits at the priority of the engine that serves: a process that was made nicer cannot be made less
nice again without a privilege that containers lack, and would serve slowly for ever.
"""

from __future__ import annotations

import logging
import threading
import time
from functools import partial
from typing import TYPE_CHECKING

from rayguard.engine.build.builder import BuildOrder, EngineBuilder
from rayguard.engine.build.footprint import measure, refuse_without_room
from rayguard.engine.evidence import gather
from rayguard.engine.standby.plan import SETTLED_S, StandbyView, Step, next_step, pause_s
from rayguard.engine.standby.spare import NO_STANDBY, Spare, SpareState, Wish, end_engine
from rayguard.errors import WeightSourceError
from rayguard.harmless import harmless
from rayguard.process.deaths import DeathWatch

if TYPE_CHECKING:
    from pathlib import Path

    from rayguard.engine.protocol import Engine
    from rayguard.engine.weights.current import CurrentWeights
    from rayguard.engine.weights.version import Weights
    from rayguard.process.identity import ProcessId
    from rayguard.recovery.policy import GuardPolicy
    from rayguard.recovery.tally import EngineTally

_log = logging.getLogger("rayguard")
_CLOSE_S = 40.0  # longer than a build takes that is called off


class Standby:
    """The keeper. Its methods return at once, unless they say otherwise; call them from any thread."""

    def __init__(
        self, builder: EngineBuilder, weights: CurrentWeights, policy: GuardPolicy, tally: EngineTally
    ) -> None:
        self._builder = builder
        self._weights = weights
        self._policy = policy
        self._tally = tally
        self._turn = threading.Condition()
        self._state = SpareState()
        self._deaths = DeathWatch("rayguard-standby-deaths")
        self._thread: threading.Thread | None = None
        self._said = ""
        weights.pushed = self._pushed

    def want(self, applied: tuple[str, ...], serving: Engine, records: Path) -> None:
        """Have one with these settings from now on, beside ``serving``."""
        with self._turn:
            self._state.wish = Wish(applied, serving, records)
            if self._thread is None and not self._state.closed:
                self._thread = threading.Thread(target=self._run, name="rayguard-standby", daemon=True)
                self._thread.start()
            self._turn.notify_all()

    def take(self, applied: tuple[str, ...]) -> Spare | str:
        """Hand the standby over to serve, or say why not. Waits for a push to it that is under way."""
        with self._turn:
            state = self._state
            spare = state.spare
            if spare is None:
                return (
                    "no standby was ready" if state.building is None else "the standby was still being built"
                )
            if spare.applied != applied:
                built_with = ", ".join(spare.applied) or "no safe setting"
                return f"the standby was not used: it was built with {built_with}"
            if not spare.why_unfit():
                self._turn.wait_for(lambda: not state.busy, self._policy.weights_deadline_s)
            if unfit := spare.why_unfit():
                return f"the standby was not used: {unfit}"
            if state.busy or state.spare is not spare:
                return "the standby was not used: it takes too long to take its weights"
            return self._hand_over(spare)

    def finish(self, applied: tuple[str, ...], deadline_s: float) -> Spare | None:
        """Wait for a standby that is being built with these settings and hand it over; call off any other.

        Afterwards nothing is built or ended any more until one is wanted again.
        """
        with self._turn:
            state = self._state
            if state.building is not None and state.building != applied:
                state.called_off.set()
            state.wish = state.wish if state.building == applied else None
            self._turn.notify_all()
            self._turn.wait_for(lambda: state.building is None and not state.leaving, deadline_s)
            self._turn.wait_for(lambda: not state.busy, self._policy.weights_deadline_s)
            state.wish, spare = None, state.spare
            if spare is None or spare.applied != applied or spare.why_unfit() or state.busy:
                return None
            return self._hand_over(spare)

    def retire(self, engine: Engine) -> None:
        """End an engine that was replaced, behind the one that serves now."""
        with self._turn:
            self._state.leaving.append(engine)
            self._turn.notify_all()

    def status(self) -> dict[str, object]:
        """Return what there is and what it costs, in plain types."""
        with self._turn:
            spare = self._state.spare
            if spare is None:
                return NO_STANDBY if self._state.building is None else {**NO_STANDBY, "standby": "building"}
            return spare.status(ready=self._is_ready(spare))

    def close(self) -> None:
        """End the standby, and what is left of engines that were replaced; waits for that."""
        with self._turn:
            state = self._state
            state.closed, state.wish = True, None
            state.called_off.set()
            spare, state.spare = state.spare, None
            self._turn.notify_all()
        if spare is not None:
            end_engine(spare.engine)  # also what is being pushed to it
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_CLOSE_S)
        self._deaths.close()
        with self._turn:
            left = [*state.leaving, *([] if state.spare is None else [state.spare.engine])]
            state.leaving, state.spare = [], None
            self._tally.standby_ready = False
        for engine in left:
            end_engine(engine)

    def _pushed(self, weights: Weights) -> None:
        with self._turn:
            if self._state.spare is not None or self._state.building is not None:
                self._state.pushed = weights
            self._turn.notify_all()

    def _died(self, _: ProcessId) -> None:
        with self._turn:
            self._turn.notify_all()  # the thread looks

    def _run(self) -> None:
        while True:
            with self._turn:
                step, rest_s = next_step(self._view())
                if self._state.closed:
                    return
                if step is Step.REST:
                    self._settle()
                    self._turn.wait(rest_s)
                    continue
                self._state.busy = True
                if step is Step.BUILD and self._state.wish is not None:
                    self._state.building = self._state.wish.applied
                    self._state.called_off = threading.Event()
            try:
                self._do(step)
            except Exception as error:  # noqa: BLE001 - where the keeper runs: it must outlive every failure
                self._failed(error)
            finally:
                with self._turn:
                    self._state.busy, self._state.building = False, None
                    self._settle()
                    self._turn.notify_all()

    def _view(self) -> StandbyView:
        state, spare = self._state, self._state.spare
        return StandbyView(
            now=time.monotonic(),
            leaving=bool(state.leaving),
            wanted=None if state.wish is None else state.wish.applied,
            has=None if spare is None else spare.applied,
            fit=spare is None or not spare.why_unfit(),
            behind=spare is not None and self._is_behind(spare),
            can_push=spare is not None and spare.engine.can_push(),
            not_before=state.not_before,
        )

    def _is_behind(self, spare: Spare) -> bool:
        weights = self._weights
        return not weights.fixed and not weights.pending and spare.prepared_for != weights.proof

    def _is_ready(self, spare: Spare) -> bool:
        state = self._state
        if state.busy or (state.wish is not None and state.wish.applied != spare.applied):
            return False
        at_weights = self._weights.fixed or (spare.proof is not None and not self._is_behind(spare))
        return at_weights and not spare.why_unfit()

    def _settle(self) -> None:
        spare = self._state.spare
        self._tally.standby_ready = spare is not None and self._is_ready(spare)
        if spare is not None and time.monotonic() - spare.since > SETTLED_S:
            self._state.failures = 0

    def _hand_over(self, spare: Spare) -> Spare:
        state = self._state
        state.spare = state.wish = state.pushed = None
        state.failures, state.not_before = 0, 0.0
        self._unwatch(spare)
        self._tally.standby_ready = False
        return spare

    def _unwatch(self, spare: Spare) -> None:
        for known in spare.engine.processes():
            self._deaths.unwatch(known.process)

    def _do(self, step: Step) -> None:
        state = self._state
        if step is Step.END:
            end_engine(state.leaving[0])
            with self._turn:
                del state.leaving[0]
        elif step is Step.DROP and state.spare is not None:
            self._drop(state.spare)
        elif step is Step.BUILD and state.wish is not None:
            self._build(state.wish)
        elif step is Step.PREPARE and state.spare is not None:
            self._prepare(state.spare)

    def _drop(self, spare: Spare) -> None:
        why = "" if spare.spoiled else spare.why_unfit()  # that was counted when it happened
        with self._turn:
            self._state.spare = self._state.pushed = None
        self._unwatch(spare)
        end_engine(spare.engine)
        if why:
            self._count(f"the standby engine is replaced: {why}")

    def _build(self, wish: Wish) -> None:
        began = time.monotonic()
        beside = measure(known.process for known in wish.serving.processes())
        order = BuildOrder(
            applied=wish.applied,
            predecessor=wish.serving,
            records=wish.records,
            deadline_s=self._policy.build_deadline_s,
            called_off=self._state.called_off,
            refuse=partial(refuse_without_room, beside=beside),
        )
        engine = self._builder.build(order)
        footprint = measure(known.process for known in engine.processes())
        now = time.monotonic()
        if self._state.closed:
            end_engine(engine)
            return
        with self._turn:
            self._state.spare = Spare(engine, wish.applied, footprint, now)
            self._said = ""
        for known in engine.processes():
            self._deaths.watch(known.process, self._died)
        _log.info("rayguard: a standby engine was built in %.1f s; it holds %s", now - began, footprint)

    def _prepare(self, spare: Spare) -> None:
        with self._turn:
            wanted, pushed, self._state.pushed = self._weights.proof, self._state.pushed, None
        if pushed is not None and (pushed.version, pushed.digest) != (wanted.version, wanted.digest):
            pushed = None
        try:
            spare.proof = None
            spare.proof = self._weights.prepare(spare.engine, pushed)
            spare.prepared_for = wanted
        except WeightSourceError:
            raise
        except Exception:
            spare.spoiled = True  # it may be half loaded, or paused in the middle: a new one is sure
            raise

    def _failed(self, error: Exception) -> None:
        state = self._state
        if state.closed or state.called_off.is_set():
            return
        cause = f"{type(error).__name__}: {error}"
        with harmless("standby"):
            if state.wish is not None and state.spare is None:
                fault = gather(None, error, state.wish.records, 0.0, None)
                cause = str(fault.records[0]) if fault.records else cause
        self._count(f"the standby engine failed; the engine that serves goes on without one: {cause}")

    def _count(self, what: str) -> None:
        with self._turn:
            state = self._state
            state.failures += 1
            self._tally.standby_failures += 1
            wait_s = pause_s(state.failures)
            state.not_before = time.monotonic() + wait_s
            new, self._said = what != self._said, what
        # The same failure every ten minutes for a week is one line.
        _log.log(logging.WARNING if new else logging.DEBUG, "rayguard: %s; next try in %.0f s", what, wait_s)
