"""One pool, and the trials that are held on it: set up, struck, judged, and made whole again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import ray

from rayguard.recovery.journal import Journal
from tests.benchmarks.trials import own_answer, rollouts, score, stage, strike
from tests.benchmarks.trials.acts import Act
from tests.benchmarks.trials.batch import ANSWER_S, Batch
from tests.benchmarks.trials.oracle import with_stops
from tests.benchmarks.trials.plan import Fault, Place, Trial
from tests.benchmarks.trials.rest import Rest, leftovers
from tests.benchmarks.trials.score import Outcome
from tests.benchmarks.trials.weights import CurrentWeights, PushedWeights
from tests.benchmarks.trials.witness import CoreWitness, Crowd

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from rayguard import RolloutPool
    from tests.benchmarks.trials.observer import Observer
    from tests.benchmarks.trials.oracle import Oracle, Question

ATTEMPTS = 3  # of a trial whose fault came too late


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
        place: Place,
    ) -> None:
        self.pool, self.observer, self.oracle = pool, observer, oracle
        self.folder, self.place = folder, place
        kind = PushedWeights if place is Place.OWN_PUSHES else CurrentWeights
        self.weights = kind(pool, source)
        self.rest = Rest(pool, self.weights, place)
        self.journal = Journal(stage.home(folder))

    # -- the right answers

    def learn(self) -> None:
        """Ask for the right answers under all weights that are ever current here."""
        oracle, looks = self.oracle, []
        every = rollouts.WEIGHTS if self.place.weights_come else (self.weights.now,)
        for weights in every:
            self._turn_to(weights)
            looking = [q for q in oracle.questions if q.kind.startswith("stop")]
            answers = self._ask(looking)
            looks.append({q.name: g.samples[0].text for q, g in zip(looking, answers, strict=True)})
        oracle.questions = with_stops(oracle.questions, looks)
        unsteady = []
        for weights in every:
            self._turn_to(weights)
            unsteady += oracle.learn(weights, self._ask)
        if unsteady:
            raise RuntimeError(
                "these answers are not the same twice without any fault: " + "; ".join(unsteady)
            )

    def _turn_to(self, weights: str) -> None:
        if self.place.weights_come:
            self.weights.renew(weights)

    def _ask(self, questions: Sequence[Question]) -> list[Any]:
        prompts, sampling = [q.prompt for q in questions], [dict(q.sampling) for q in questions]
        return list(self.pool.generate(prompts, sampling, deadline_s=ANSWER_S))

    # -- one trial

    def hold(self, trial: Trial) -> Outcome:
        """Hold a trial, once more where the fault came too late; return what came of it."""
        outcome = Outcome(trial=trial)
        for attempt in range(ATTEMPTS):
            target = self._once(trial, outcome, attempt)
            self.rest.settle(outcome)
            if trial.fault.of_actor and outcome.fired:
                self._judge_heir(outcome, target)
            if outcome.fired or outcome.problems[1:]:
                break
        return outcome

    def _once(self, trial: Trial, outcome: Outcome, attempt: int) -> strike.Target:
        weights = self.weights
        if (trial.new_weights or trial.place is Place.OWN_PUSHES) and not attempt:
            weights.renew(weights.others(trial))
        notes, known = self.observer.fresh(), {one.id for one in self.journal.read()}
        # An actor that was replaced has another name.
        name = list(self.pool.handles)[trial.target]
        act = Act(trial, self.pool, self.folder, name, offer=weights.renew, current=weights.now)
        act.prepare()
        rank = int(own_answer.way(trial)) if trial.fault is Fault.KILL_RANK else 0
        target = strike.Target.of(self.pool, self.folder, name, rank=rank)
        before = self._lives()
        asked = self._asked(trial, attempt)
        child = strike.fork_child(self.pool, target.name) if trial.fault is Fault.FORKED_CHILD else 0
        batch = Batch(self.pool, trial.api, asked)
        others, late = weights.others(trial), 1.0 / (1 + attempt)  # sooner, when it came too late
        tokens = int(late * self._expected(asked))
        means = strike.Means(notes, lambda: weights.renew(others), act)
        with self._crowd() as crowd:
            batch.start()
            blow = strike.strike(trial, target, batch, tokens, means)
            batch.join(ANSWER_S + 60.0)
        outcome.two_on_a_device += crowd.too_many
        if trial.fault is Fault.ASSERTION:
            blow = strike.burnt(target)
        blow.child = child
        self._judge(outcome, asked, batch, blow, target, known)
        self._judge_act(outcome, act, before)
        return target

    def _crowd(self) -> Crowd:
        """Watch that no engine begins before the one in whose place it comes is gone; but for a standby."""
        twice = 2 if self.place is Place.STANDBY else 1
        return Crowd(rollouts.witnesses(self.folder), twice * self.rest.engines)

    def _asked(self, trial: Trial, attempt: int) -> dict[str, Question]:
        prefix = f"t{trial.number}{'abc'[attempt]}{self.place.value[0]}"
        questions = self.oracle.questions
        return {f"{prefix}-{n}": questions[which] for n, which in enumerate(trial.questions)}

    def _expected(self, asked: dict[str, Question]) -> float:
        total = sum(self.oracle.tokens(self.weights.now, question) for question in asked.values())
        return total / self.rest.engines

    def _lives(self) -> dict[str, tuple[int, int]]:
        """Return which life of which engine there is, and how often one was begun anew."""
        handles = self.pool.handles
        calls = [handle.engine_status.remote() for handle in handles.values()]
        found = ray.get(calls, timeout=strike.STATUS_S)
        return {name: (one["epoch"], one["restarts"]) for name, one in zip(handles, found, strict=True)}

    def _judge(
        self,
        outcome: Outcome,
        asked: dict[str, Question],
        batch: Batch,
        blow: strike.Blow,
        target: strike.Target,
        known: set[str],
    ) -> None:
        notes, oracle = self.weights.seen(self.observer.notes), self.oracle
        score.judge(outcome, asked, batch.got, oracle, notes, score.number_of(self.weights.version))
        outcome.lost += batch.errors
        if blow.pushed:
            when = "in" if blow.pushing else "after"
            outcome.notes.append(f"struck {when} the push, which took {blow.push_s:.3f} s: {blow.pushed}")
        if blow.at is not None:
            if blow.died_s is not None:
                outcome.notes.append(f"process {blow.pid} was gone after {blow.died_s:.3f} s")
            prompts, fault = self._prompts(asked), outcome.trial.fault
            waiting = prompts.keys() - notes.answered(blow.at)
            running = notes.running(blow.at, target.name)
            outcome.running = len(running)
            outcome.fired = bool(waiting if fault.pushes or fault is Fault.MISFIT_PUSH else running)
            seen, outcome.unseen = score.as_of_fault(self._witnessed(), blow.seen)
            cuts = score.cuts_of(seen, prompts)
            samples = {sample.id: sample for generation in batch.got for sample in generation.samples}
            score.judge_tokens(outcome, cuts, samples)
            outcome.recover_s = score.next_token_s(blow.at, cuts, notes.news, waiting)
            outcome.detect_s = self._detected(outcome, blow, target, known)
        leftovers(outcome, blow)

    def _judge_act(self, outcome: Outcome, act: Act, before: dict[str, tuple[int, int]]) -> None:
        """Judge what the fault's own caller got, and whether the fault was noticed."""
        outcome.notes += [str(one) for one in act.told]
        if not outcome.fired:
            return
        trial = outcome.trial
        outcome.amiss += own_answer.amiss(trial, act.told, act.wanted)
        outcome.never_noticed += own_answer.unnoticed(trial, act.told, outcome.detect_s)
        if own_answer.harmless(trial) and (now := self._lives()) != before:
            outcome.amiss.append(f"engines were begun anew for it: {before}, {now}")

    def _judge_heir(self, outcome: Outcome, target: strike.Target) -> None:
        """Note whether the actor's next life went on with its engine, which waited."""
        handle = self.pool.handles.get(target.name)
        now = None if handle is None else ray.get(handle.engine_status.remote(), timeout=strike.STATUS_S)
        if now is not None and now["pids"]["core"] == target.core.pid:
            outcome.adopted += 1
        elif outcome.trial.fault in {Fault.HEIR_KILL_ACTOR, Fault.RAY_KILL_ACTOR}:
            has = "nothing: the pool has hired another actor" if now is None else f"{now['pids']}"
            what = (
                f"the actor's next life has another engine than {target.core.pid}, which waited for it: {has}"
            )
            outcome.amiss.append(f"{what}; the pool has {sorted(self.pool.handles)}")
            outcome.notes += [f"{one.sentence()}; {'; '.join(one.notes)}" for one in self.journal.read()[-4:]]

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
        for path in rollouts.witnesses(self.folder).glob("*.witness"):
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
