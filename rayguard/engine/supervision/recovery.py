"""One recovery from beginning to end: facts, verdict, decision, a new life; the story told on the way.

The only place that carries out an engine's remedies. It runs in a thread of the supervisor's, which sees to
it that there is one at a time.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from rayguard.engine.evidence import gather
from rayguard.engine.protocol import Carried, Engine, Verdicts
from rayguard.engine.supervision.engine_incident import EngineStory, weights_lost
from rayguard.errors import (
    ConfigError,
    EngineHungError,
    GaveUpError,
    WeightsError,
    WeightSourceError,
    WrongTokensError,
)
from rayguard.faults.diagnosis import Diagnosis, Kind, Scope
from rayguard.harmless import harmless
from rayguard.recovery.incident import Incident, Outcome, attach
from rayguard.recovery.machine import Decision, EngineState, Failed, build_failed, handle
from rayguard.recovery.remedy import Action, Remedy
from rayguard.recovery.tally import TALLY

if TYPE_CHECKING:
    from rayguard.engine.context import Surroundings
    from rayguard.engine.supervision.lifecycle import Lives
    from rayguard.faults.fault import Fault, Silence
    from rayguard.recovery.policy import GuardPolicy

_log = logging.getLogger("rayguard")
_LOOK_S = 1.0
_CALLS_S = 0.05
_POISONED = frozenset({Kind.CUDA_DEVICE_ASSERT, Kind.CUDA_ILLEGAL_ACCESS})
_NEVER_RETRIED = frozenset({Scope.CODE, Scope.JOB})


class Recovery:
    """Carries out what is decided. ``state`` is what the slot has been through, kept across processes."""

    def __init__(self, lives: Lives, policy: GuardPolicy, surroundings: Surroundings) -> None:
        self._lives = lives
        self._policy = policy
        self._around = surroundings
        self._since = 0.0  # records older than the present life are not evidence
        self.tally = TALLY.engine(surroundings.target)
        self.wanted = threading.Event()  # by whoever waits for the next engine
        self.parked = threading.Event()  # until it is
        self.state = EngineState()
        self._changes = lives.weights.changes
        self._changes.tell = self._remember
        self.last: Incident | None = None  # the incident that was closed last
        with harmless("memory"):
            memory = surroundings.recall()
            self.state = EngineState.from_json(memory)
            self._changes.recall(memory)

    def first(self) -> None:
        """Begin the first life. What the recipe raised comes out, unless another try can help."""
        self._go_on(Verdicts(), None)
        if self._changes.lost:
            _log.error("rayguard: %s", self._changes.refusal)
            with harmless("journal"):
                self._around.noticed(weights_lost(self._changes.refusal))

    def repair(
        self, old: Engine, error: BaseException | None, silence: Silence | None, detected_at: float
    ) -> None:
        """Replace ``old``, which failed.

        Raises:
            GaveUpError: The budget is spent.
        """
        fault = self.facts(old, error, silence)
        diagnosis = self.verdict(fault)
        progress, doubted = old.progress(), isinstance(error, WrongTokensError)
        story = EngineStory(
            self._around,
            fault,
            diagnosis,
            detected_at=detected_at,
            epoch=self._lives.epoch,
            requests=len(progress.running) + len(progress.held),
        )
        event = Failed(
            diagnosis=diagnosis,
            now=detected_at,
            requests=() if doubted else progress.running,
            held=(*progress.held, *progress.running) if doubted else progress.held,
            calls=(*progress.calls, *progress.just_ended),
            reads=progress.reads,
            own_process=not old.processes(),
            restartable=self._restartable(),
        )
        if event.calls:
            story.note(f"calls that were in it or had just left it: {', '.join(event.calls)}")
        self.state, decision = handle(self.state, event, self._policy)
        self._obey(decision, story, error)
        verdicts = _verdicts(decision, story, doubt=str(error) if doubted else "")
        old.interrupt(_as_exception(error, silence))
        if self._taken_over(verdicts, story):
            return
        asleep = old.standing()
        stayed = self._lives.end()
        if stayed:
            story.note(f"engine processes that would not die: {', '.join(map(str, stayed))}")
        if asleep.state == "asleep":
            story.note(f"it slept since {asleep.call}: a new one is built when somebody asks for the engine")
            self._await_use(old)
        self._go_on(verdicts, story)

    def _await_use(self, old: Engine) -> None:
        """Return when somebody asks for the engine: its memory is lent to somebody else while it sleeps."""
        self.parked.set()
        while not (self.wanted.wait(_LOOK_S) or self._lives.closed or old.progress().running):
            ...
        self.parked.clear()

    def tell(self, error: Exception, _life: object) -> None:
        """Write what ``error`` tells of an engine that serves on."""
        told = Incident.of(fault := self.facts(None, error, None), self.verdict(fault))
        self._around.noticed(replace(told, outcome=Outcome.FAILED))

    def change(self, state: EngineState) -> None:
        """Rebuild with the settings of ``state``, between requests: no fault, so no incident."""
        if self._lives.builder.why_unusable(state.applied):
            # Not asked again at each call.
            self.state = replace(self.state, last_fault_at=state.last_fault_at)
            return
        self.state = state
        self.renew("the engine is rebuilt with faster settings")
        self._remember()

    def renew(self, why: str) -> None:
        """Rebuild with the settings in force; what runs goes on with the new engine. Not a fault either."""
        engine = self._lives.engine
        busy = engine is not None and bool(engine.progress().running)
        if engine is not None:
            _let_calls_end(engine, self._policy.weights_deadline_s)
            engine.interrupt(RuntimeError(why))
        self._lives.end(polite_s=0.0 if busy else self._policy.teardown_deadline_s)
        self._go_on(Verdicts(), None)

    def is_of_engine(self, error: BaseException, engine: Engine) -> bool:
        """Say whether what a call raised tells that the engine it was made on has failed."""
        if isinstance(error, WeightsError):
            return False  # a request that was refused: it never reached the engine
        fault = self.facts(engine, error, None)
        if fault.exits or any(seen.type_name.endswith("EngineDeadError") for seen in fault.exceptions):
            return True
        if engine.processes():
            return False  # they live: an error of one call is that call's, though its worker logs it
        diagnosis = self.verdict(fault)
        return diagnosis.scope is Scope.ENGINE or diagnosis.kind in _POISONED

    def facts(self, engine: Engine | None, error: BaseException | None, silence: Silence | None) -> Fault:
        """Return what is known about a failure now."""
        return gather(engine, error, self._lives.records, self._since, silence)

    def verdict(self, fault: Fault) -> Diagnosis:
        """Return what it is; never fails."""
        with harmless("diagnosis"):
            return self._around.diagnose(fault)
        seen = (*fault.records, *fault.exits, *fault.exceptions)
        return Diagnosis(
            signature="undiagnosed",
            kind=Kind.UNKNOWN,
            scope=Scope.UNKNOWN,
            cause=str(seen[0]) if seen else "nothing is known",
            confidence=0.0,
        )

    def _taken_over(self, verdicts: Verdicts, story: EngineStory) -> bool:
        """Let the standby go on; where there is none, or anything goes wrong with it, an engine is built."""
        since = self._around.now()
        taken: Carried | str = "the standby failed as it took over"
        with harmless("standby"):
            taken = self._lives.take_over(self.state.applied, verdicts)
        if not isinstance(taken, Carried):
            if taken:
                story.note(taken)
            return False
        self._since = since
        story.note("the standby engine took over")
        self._recovered(taken, story)
        return True

    def _go_on(self, verdicts: Verdicts, story: EngineStory | None) -> None:
        while True:
            self._since = self._around.now()
            try:
                carried = self._lives.begin(self.state.applied, verdicts)
                break
            except Exception as broken:
                if self._lives.closed:
                    raise
                story = self._build_failed(broken, story)
        if story is not None:
            self._recovered(carried, story)

    def _build_failed(self, broken: Exception, story: EngineStory | None) -> EngineStory | None:
        """Decide what a failed build means; returns when it is to be tried again."""
        refused = self.state.applied and self._lives.builder.why_unusable(self.state.applied)
        if refused:
            self.state = build_failed(self.state, self.state.applied[-1])
            if story is not None:
                story.note(f"the installed engine refuses {self.state.unusable[-1]}: {refused}")
            return story
        fault = self.facts(None, broken, None)
        diagnosis = self.verdict(fault)
        first = self._lives.epoch == 0 and story is None
        if first and diagnosis.scope in _NEVER_RETRIED and not isinstance(broken, ConfigError):
            raise broken
        now = self._around.now()
        if story is None:
            epoch = self._lives.epoch
            story = EngineStory(self._around, fault, diagnosis, detected_at=now, epoch=epoch, requests=0)
        if first and isinstance(broken, ConfigError):
            # A user's own error gets its incident where it comes out of the actor's method.
            story.treated(Remedy(action=Action.GIVE_UP, reason="only people can mend a wrong recipe"))
            attach(broken, story.close(Outcome.FAILED))
            raise broken
        story.note(f"the engine could not be started: {diagnosis.cause}")
        event = Failed(diagnosis=diagnosis, now=now, restartable=self._restartable())
        self.state, decision = handle(self.state, event, self._policy)
        if isinstance(broken, WeightSourceError):
            reason = "no new engine makes the weight source answer"
            decision = Decision(remedy=Remedy(action=Action.GIVE_UP, reason=reason))
        self._obey(decision, story, broken)
        return story

    def _obey(self, decision: Decision, story: EngineStory, error: BaseException | None) -> None:
        """Do what is to be done when it is not a new engine; return when it is."""
        remedy = decision.remedy
        story.treated(remedy)
        self._remember()
        if remedy.action is Action.RESTART_ENGINE:
            return
        incident = self.last = story.close(Outcome.FAILED)
        if remedy.action is Action.RESTART_PROCESS:
            _log.warning("rayguard: this process ends so that Ray starts it anew: %s", incident.cause)
            self._around.die()
        self._lives.give_up()
        advice = incident.advice or "read `rayguard incidents`"
        cause = f"{incident.cause}; {remedy.reason}"
        tried = tuple(label for label, _at in self.state.tried)
        final = GaveUpError(self._around.target, cause, tried, advice)
        attach(final, incident)
        raise final from error

    def _recovered(self, carried: Carried, story: EngineStory) -> None:
        self.tally.restarts += 1
        self.tally.tokens_saved += carried.tokens_saved
        self.tally.tokens_lost += carried.tokens_lost
        self._remember()
        if lost := self._changes.lost or self._lives.weights.refused:
            _log.error("rayguard: %s", self._changes.refusal)
            story.note(self._changes.refusal)
        self.last = story.close(Outcome.STATE_LOST if lost else Outcome.RECOVERED, carried)

    def _restartable(self) -> bool:
        with harmless("restartable"):
            return self._around.restartable()
        return False

    def _remember(self) -> None:
        with harmless("memory"):
            self._around.remember({**self.state.to_json(), **self._changes.to_json()})


def _verdicts(decision: Decision, story: EngineStory, doubt: str) -> Verdicts:
    why = f"quarantined: it was running each time an engine died ({story.incident.cause})"
    if decision.quarantined:
        story.note(f"quarantined: {', '.join(decision.quarantined)}")
    return Verdicts(
        quarantined=dict.fromkeys(decision.quarantined, why),
        suspects=decision.suspects,
        calls=dict.fromkeys(decision.calls, story.incident.cause),
        doubt=doubt,
    )


def _let_calls_end(engine: Engine, deadline_s: float) -> None:
    """Wait until no call that may change the engine is in it: one that is cut off is not made again."""
    until, pause = time.monotonic() + deadline_s, threading.Event()
    while engine.progress().calls and time.monotonic() < until:
        pause.wait(_CALLS_S)


def _as_exception(error: BaseException | None, silence: Silence | None) -> Exception:
    hung = EngineHungError("the engine died" if silence is None else str(silence))
    return error if isinstance(error, Exception) else hung
