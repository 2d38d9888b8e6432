"""One pool, and the trials that are held on it: set up, struck, judged, and made whole again."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import TYPE_CHECKING, Any

import ray

from rayguard.errors import RayguardError
from rayguard.process.identity import ProcessId
from rayguard.recovery.journal import Journal
from tests.benchmarks.trials import score, stage, strike
from tests.benchmarks.trials.batch import ANSWER_S, Batch
from tests.benchmarks.trials.oracle import with_stops
from tests.benchmarks.trials.plan import Fault, Trial
from tests.benchmarks.trials.score import Outcome
from tests.benchmarks.trials.witness import CoreWitness

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from rayguard import RolloutPool
    from tests.benchmarks.trials.observer import Observer
    from tests.benchmarks.trials.oracle import Oracle, Question

SETTLE_S = 300.0
ATTEMPTS = 3  # of a trial whose fault came too late
_PAUSE_S = 0.6  # longer than a safe setting's probation
_END_S = 30.0


class Arena:
    """One pool and the trials that are held on it."""

    def __init__(
        self,
        pool: RolloutPool,
        observer: Observer,
        oracle: Oracle,
        source: Any,
        folder: Path,
        *,
        standby: bool,
    ) -> None:
        self.pool, self.observer, self.oracle, self.source = pool, observer, oracle, source
        self.folder, self.standby = folder, standby
        self.engines = len(pool.handles)
        self.journal = Journal(stage.home(folder))

    # -- the right answers

    def learn(self) -> None:
        """Ask for the right answers under all weights."""
        oracle, looks = self.oracle, []
        for weights in stage.WEIGHTS:
            self.renew(weights)
            looking = [q for q in oracle.questions if q.kind.startswith("stop")]
            answers = self._ask(looking)
            looks.append({q.name: g.samples[0].text for q, g in zip(looking, answers, strict=True)})
        oracle.questions = with_stops(oracle.questions, looks)
        unsteady = []
        for weights in stage.WEIGHTS:
            self.renew(weights)
            unsteady += oracle.learn(weights, self._ask)
        if unsteady:
            raise RuntimeError(
                "these answers are not the same twice without any fault: " + "; ".join(unsteady)
            )

    def _ask(self, questions: Sequence[Question]) -> list[Any]:
        prompts, sampling = [q.prompt for q in questions], [dict(q.sampling) for q in questions]
        return list(self.pool.generate(prompts, sampling, deadline_s=ANSWER_S))

    def renew(self, weights: str) -> str:
        """Make ``weights`` current and bring all engines to them."""
        ray.get(self.source.advance.remote(weights), timeout=strike.STATUS_S)
        return self.pool.update_weights()

    def _current(self) -> str:
        return str(ray.get(self.source.weights.remote(), timeout=strike.STATUS_S)[0])

    def _others(self, trial: Trial) -> str:
        """Return weights that are not the current ones."""
        now = stage.WEIGHTS.index(score.weights_of(self._current()))
        return stage.WEIGHTS[(now + 1 + trial.number % (len(stage.WEIGHTS) - 1)) % len(stage.WEIGHTS)]

    # -- one trial

    def hold(self, trial: Trial) -> Outcome:
        """Hold a trial, once more where the fault came too late; return what came of it."""
        outcome = Outcome(trial=trial)
        for attempt in range(ATTEMPTS):
            self._once(trial, outcome, attempt)
            self.settle()
            if outcome.fired or outcome.problems[1:]:
                break
        return outcome

    def _once(self, trial: Trial, outcome: Outcome, attempt: int) -> None:
        if trial.new_weights and not attempt:
            self.renew(self._others(trial))
        notes, known = self.observer.fresh(), {one.id for one in self.journal.read()}
        # An actor that was replaced has another name.
        target = strike.Target.of(self.pool, self.folder, list(self.pool.handles)[trial.target])
        asked = self._asked(trial, attempt)
        child = strike.fork_child(self.pool, target.name) if trial.fault is Fault.FORKED_CHILD else 0
        batch = Batch(self.pool, trial.api, asked)
        batch.start()
        others, late = self._others(trial), 1.0 / (1 + attempt)  # sooner, when it came too late
        tokens = int(late * self._expected(asked))
        blow = strike.strike(trial, target, batch, tokens, notes, lambda: self.renew(others))
        batch.join(ANSWER_S + 60.0)
        if trial.fault is Fault.ASSERTION:
            blow = strike.burnt(target)
        blow.child = child
        self._judge(outcome, asked, batch, blow, target, known)

    def _asked(self, trial: Trial, attempt: int) -> dict[str, Question]:
        prefix = f"t{trial.number}{'abc'[attempt]}{'s' if self.standby else ''}"
        questions = self.oracle.questions
        return {f"{prefix}-{n}": questions[which] for n, which in enumerate(trial.questions)}

    def _expected(self, asked: dict[str, Question]) -> float:
        weights = score.weights_of(self._current())
        total = sum(self.oracle.tokens(weights, question) for question in asked.values())
        return total / self.engines

    def _judge(
        self,
        outcome: Outcome,
        asked: dict[str, Question],
        batch: Batch,
        blow: strike.Blow,
        target: strike.Target,
        known: set[str],
    ) -> None:
        notes, oracle = self.observer.notes, self.oracle
        score.judge(outcome, asked, batch.got, oracle, notes, score.number_of(self._current()))
        outcome.lost += batch.errors
        if blow.pushed:
            when = "in" if blow.pushing else "after"
            outcome.notes.append(f"struck {when} the push, which took {blow.push_s:.3f} s: {blow.pushed}")
        if blow.at is not None:
            if blow.died_s is not None:
                outcome.notes.append(f"process {blow.pid} was gone after {blow.died_s:.3f} s")
            prompts = self._prompts(asked)
            waiting = prompts.keys() - notes.answered(blow.at)
            running = notes.running(blow.at, target.name)
            outcome.running = len(running)
            outcome.fired = bool(waiting if outcome.trial.fault.pushes else running)
            seen, outcome.unseen = score.as_of_fault(self._witnessed(), blow.seen)
            cuts = score.cuts_of(seen, prompts)
            samples = {sample.id: sample for generation in batch.got for sample in generation.samples}
            score.judge_tokens(outcome, cuts, samples)
            outcome.recover_s = score.next_token_s(blow.at, cuts, notes.news, waiting)
            outcome.detect_s = self._detected(outcome, blow, target, known)
        self._leftovers(outcome, blow)

    def _prompts(self, asked: dict[str, Question]) -> dict[str, int]:
        """Return the length of each request's prompt, by the ids that the engines know."""
        lengths = self.oracle.prompt_tokens
        return {
            name if question.n == 1 else f"{name}/{index}": lengths[question.name]
            for name, question in asked.items()
            for index in range(question.n)
        }

    def _witnessed(self) -> Iterator[Any]:
        """Read all cores that there ever were."""
        for path in stage.witnesses(self.folder).glob("*.witness"):
            yield from CoreWitness(path).read()

    def _detected(
        self, outcome: Outcome, blow: strike.Blow, target: strike.Target, known: set[str]
    ) -> float | None:
        """Return the seconds from the fault to its first notice."""
        assert blow.at is not None
        if outcome.trial.fault.of_actor:
            missed = [
                (at, why)
                for at, name, why in self.observer.notes.left
                if name == target.name and at > blow.at
            ]
            outcome.notes += [f"missed after {at - blow.at:.3f} s: {why}" for at, why in missed]
            return missed[0][0] - blow.at if missed else None
        mine = [
            one
            for one in self.journal.read()
            if one.id not in known and one.actor_id == target.actor_id and one.epoch
        ]
        mine.sort(key=lambda one: one.detected_at)
        outcome.notes += [f"incident {one.id}: {one.sentence()}; {'; '.join(one.notes)}" for one in mine]
        return max(0.0, mine[0].detected_at - blow.wall) if mine else None

    def _leftovers(self, outcome: Outcome, blow: strike.Blow) -> None:
        """Processes that were hit, or forked, must be gone soon after."""
        for what, pid in (("the process that was hit", blow.pid), ("the forked child", blow.child)):
            process = ProcessId.of(pid) if pid else None
            if process is not None and not gone(process, _END_S):
                outcome.left_over.append(f"{what}, {pid}, is in state {process.state()}")
                os.kill(pid, signal.SIGKILL)

    # -- between trials

    def settle(self) -> None:
        """Wait until all engines serve with the current weights, with no safe setting, standbys ready."""
        pause, until = threading.Event(), time.monotonic() + SETTLE_S
        why = "it was never looked at"
        while time.monotonic() < until:
            try:
                why = self._unsettled()
                if not why:
                    return
            except (ray.exceptions.RayError, RayguardError) as error:
                why = f"{type(error).__name__}: {error}"
            pause.wait(_PAUSE_S)
        raise RuntimeError(f"the pool does not come to rest: {why}; it says {self.pool.status()}")

    def _unsettled(self) -> str:
        self.pool.wait_ready(timeout_s=SETTLE_S)
        current = self._current()
        if self.pool.status()["weight_version"] != current:
            self.pool.update_weights()
        handles = self.pool.handles
        if len(handles) < self.engines:
            return f"there are {len(handles)} of {self.engines} engines"
        for name, handle in handles.items():
            status = ray.get(handle.engine_status.remote(), timeout=strike.STATUS_S)
            if not status["serving"] or status["weight_version"] != current:
                return f"{name} has {status['weight_version']!r}, wanted {current!r}: {status}"
            if self.standby and status["standby"] != "ready":
                return f"{name} has a standby that is {status['standby']}"
            if status["settings"]:
                self._take_back()
                return f"{name} runs with {status['settings']}"
        return ""

    def _take_back(self) -> None:
        """Let every engine see a request: safe settings are taken back between requests."""
        prompts = [[20, 7, 90, 11]] * (4 * self.engines)
        self.pool.generate(prompts, {"temperature": 0.0, "max_tokens": 2}, deadline_s=ANSWER_S)


def gone(process: ProcessId, within_s: float) -> bool:
    pause, until = threading.Event(), time.monotonic() + within_s
    while process.alive():
        if time.monotonic() > until:
            return False
        pause.wait(0.05)
    return True
