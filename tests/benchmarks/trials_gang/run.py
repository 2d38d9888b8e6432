"""A whole run: each gang in turn, its references, its trials and whole-job restarts; then what has no faults.

A single trial is ``arena``, where all of it happens is ``stage``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.benchmarks.trials_gang import stage
from tests.benchmarks.trials_gang.arena import Arena
from tests.benchmarks.trials_gang.leaks import leaks
from tests.benchmarks.trials_gang.oracle import Curve, Outcome, judge
from tests.benchmarks.trials_gang.plan import PLACES, Place, Strategy
from tests.benchmarks.trials_gang.quiet import false_alarms
from tests.benchmarks.trials_gang.whole_job import whole_job

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from tests.benchmarks.trials_gang.plan import Trial

SAVED_AT = 3  # the step that a whole job makes again


@dataclass(slots=True)
class Run:
    """A whole run: what is known, and what came of it."""

    folder: Path
    tell: Callable[[str], None]
    outcomes: list[Outcome] = field(default_factory=list)
    whole_s: list[float] = field(default_factory=list)
    right: dict[tuple[Strategy, int], Curve] = field(default_factory=dict)
    amiss: list[str] = field(default_factory=list)  # what went wrong outside trials
    rest: dict[str, Any] = field(default_factory=dict)

    def perform(
        self, trials: Sequence[Trial], *, every: int, quiet_s: float, generations: int, seed: int
    ) -> None:
        """Hold all trials; a whole-job restart comes after each ``every`` of them, and before the first."""
        with stage.own_ray(self.folder):
            for place in PLACES:
                at = [trial for trial in trials if trial.place == place]
                if at:
                    self._at(place, at, every)
            if quiet_s:
                self.rest |= false_alarms(quiet_s, seed, self.tell)
            if generations:
                self.rest |= leaks(self.tell, generations)

    def _at(self, place: Place, trials: Sequence[Trial], every: int) -> None:
        self.tell(f"starting a gang: {place}")
        with stage.a_gang(self.folder, place) as gang:
            arena = Arena(gang, self.folder)
            self._learn(arena, place, sorted({trial.seed for trial in trials}))
            for number, trial in enumerate(trials):
                if every and number % every == 0:
                    self._whole_job(arena, place.strategy, trial.seed)
                self.tell(str(trial))
                outcome = judge(trial, arena.hold(trial), self.right[place.strategy, trial.seed])
                outcome.whole_s = self.whole_s[-1] if self.whole_s else None
                self.outcomes.append(outcome)

    def _learn(self, arena: Arena, place: Place, seeds: Sequence[int]) -> None:
        """Train without faults: twice where the curve is not known, once more on each other gang."""
        for seed in seeds:
            self.tell(f"training without faults: {place}, seed {seed}")
            known = self.right.get((place.strategy, seed))
            for attempt in range(2 if known is None else 1):
                name = f"curve-{place.strategy.value}-{place.spares}-{seed}-{attempt}"
                curve = arena.curve(seed, self.folder / name)
                if known is not None and curve != known:
                    self.amiss.append(f"two trainings without faults differ: {name}")
                known = curve
            self.right[place.strategy, seed] = known

    def _whole_job(self, arena: Arena, strategy: Strategy, seed: int) -> None:
        """Begin the whole job again, in a process of its own; it must make the same step."""
        self.tell("the whole job again, for comparison")
        checkpoint = self.folder / f"checkpoint-{len(self.whole_s)}"
        checkpoint.mkdir()
        arena.call("begin", seed)
        for step in range(SAVED_AT):
            arena.call("step", step, str(checkpoint))
        arena.call("save", str(checkpoint))
        took, bits = whole_job(strategy.value, checkpoint, SAVED_AT)
        self.whole_s.append(took)
        if [list(one) for one in self.right[strategy, seed].losses[SAVED_AT]] != bits:
            self.amiss.append(f"the whole job made another step: {bits}")
