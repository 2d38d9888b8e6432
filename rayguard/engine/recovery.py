"""One recovery from beginning to end: facts, verdict, decision, a new life; the story told on the way.

The only place that carries out an engine's remedies. It runs in a thread of the supervisor's, which sees to
it that there is one at a time.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from rayguard.engine.evidence import gather
from rayguard.engine.protocol import Carried, Verdicts
from rayguard.engine.story import Story
from rayguard.errors import ConfigError, EngineHungError, GaveUpError, WeightSourceError
from rayguard.faults.diagnosis import Diagnosis, Kind, Scope
from rayguard.recovery.harmless import harmless
from rayguard.recovery.incident import Outcome, attach
from rayguard.recovery.machine import Decision, EngineState, Failed, build_failed, handle
from rayguard.recovery.remedy import Action, Remedy
from rayguard.recovery.tally import TALLY

if TYPE_CHECKING:
    from rayguard.engine.lives import Lives
    from rayguard.engine.protocol import Engine
    from rayguard.engine.surroundings import Surroundings
    from rayguard.faults.fault import Fault, Silence
    from rayguard.recovery.policy import GuardPolicy

_log = logging.getLogger("rayguard")
_NEVER_RETRIED = frozenset({Scope.CODE, Scope.JOB})


class Recovery:
    """Carries out what is decided. ``state`` is what the slot has been through, kept across processes."""

    def __init__(self, lives: Lives, policy: GuardPolicy, surroundings: Surroundings) -> None:
        self._lives = lives
        self._policy = policy
        self._around = surroundings
        self._since = 0.0  # records older than the present life are not evidence
        self.tally = TALLY.engine(surroundings.target)
        self.state = EngineState()
        with harmless("memory"):
            self.state = EngineState.from_json(surroundings.recall())

    def first(self) -> None:
        """Begin the first life. What the recipe raised comes out, unless another try can help."""
        self._go_on(Verdicts(), None)

    def repair(
        self, old: Engine, error: BaseException | None, silence: Silence | None, detected_at: float
    ) -> None:
        """Replace ``old``, which failed.

        Raises:
            GaveUpError: The budget is spent.
        """
        fault = self.facts(old, error, silence)
        diagnosis = self.verdict(fault)
        progress = old.progress()
        story = Story(
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
            requests=progress.running,
            held=progress.held,
            own_process=not old.processes(),
            restartable=self._restartable(),
        )
        self.state, decision = handle(self.state, event, self._policy)
        self._obey(decision, story, error)
        verdicts = _verdicts(decision, story)
        old.interrupt(_as_exception(error, silence))
        if self._taken_over(verdicts, story):
            return
        stayed = self._lives.end()
        if stayed:
            story.note(f"engine processes that would not die: {', '.join(map(str, stayed))}")
        self._go_on(verdicts, story)

    def change(self, state: EngineState) -> None:
        """Rebuild with the settings of ``state``, between requests: no fault, so no incident."""
        if self._lives.builder.why_unusable(state.applied):
            # Not asked again at each call.
            self.state = replace(self.state, last_fault_at=state.last_fault_at)
            return
        self.state = state
        self._rebuild("the engine is rebuilt with faster settings")
        self._remember()

    def renew(self, why: str) -> None:
        """Rebuild with the settings in force; what runs goes on with the new engine. Not a fault either."""
        self._rebuild(why)

    def _rebuild(self, why: str) -> None:
        engine = self._lives.engine
        busy = engine is not None and bool(engine.progress().running)
        if engine is not None:
            engine.interrupt(RuntimeError(why))
        self._lives.end(polite_s=0.0 if busy else self._policy.teardown_deadline_s)
        self._go_on(Verdicts(), None)

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

    def _taken_over(self, verdicts: Verdicts, story: Story) -> bool:
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

    def _go_on(self, verdicts: Verdicts, story: Story | None) -> None:
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

    def _build_failed(self, broken: Exception, story: Story | None) -> Story | None:
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
        if first and (isinstance(broken, ConfigError) or diagnosis.scope in _NEVER_RETRIED):
            raise broken  # only people can mend a wrong recipe
        now = self._around.now()
        if story is None:
            epoch = self._lives.epoch
            story = Story(self._around, fault, diagnosis, detected_at=now, epoch=epoch, requests=0)
        story.note(f"the engine could not be started: {diagnosis.cause}")
        event = Failed(diagnosis=diagnosis, now=now, restartable=self._restartable())
        self.state, decision = handle(self.state, event, self._policy)
        if isinstance(broken, WeightSourceError):
            reason = "no new engine makes the weight source answer"
            decision = Decision(remedy=Remedy(action=Action.GIVE_UP, reason=reason))
        self._obey(decision, story, broken)
        return story

    def _obey(self, decision: Decision, story: Story, error: BaseException | None) -> None:
        """Do what is to be done when it is not a new engine; return when it is."""
        remedy = decision.remedy
        story.treated(remedy)
        self._remember()
        if remedy.action is Action.RESTART_ENGINE:
            return
        incident = story.close(Outcome.FAILED)
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

    def _recovered(self, carried: Carried, story: Story) -> None:
        self._count(carried)
        self._remember()
        story.close(Outcome.RECOVERED, carried)

    def _count(self, carried: Carried) -> None:
        self.tally.restarts += 1
        self.tally.tokens_saved += carried.tokens_saved
        self.tally.tokens_lost += carried.tokens_lost

    def _restartable(self) -> bool:
        with harmless("restartable"):
            return self._around.restartable()
        return False

    def _remember(self) -> None:
        with harmless("memory"):
            self._around.remember(self.state.to_json())


def _verdicts(decision: Decision, story: Story) -> Verdicts:
    why = f"quarantined: it was running each time an engine died ({story.incident.cause})"
    if decision.quarantined:
        story.note(f"quarantined: {', '.join(decision.quarantined)}")
    return Verdicts(quarantined=dict.fromkeys(decision.quarantined, why), suspects=decision.suspects)


def _as_exception(error: BaseException | None, silence: Silence | None) -> Exception:
    if isinstance(error, Exception):
        return error
    return EngineHungError("the engine died" if silence is None else str(silence))
