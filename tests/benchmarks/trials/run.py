"""A whole run: Ray and its pools started and ended, the trials held one after the other.

A single trial is ``arena``; where all of it happens is ``stage``.
"""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import ray

from rayguard.process.cleanup.reaper import reap_home
from tests.benchmarks.trials import rollouts, stage
from tests.benchmarks.trials.arena import Arena
from tests.benchmarks.trials.observer import Observer
from tests.benchmarks.trials.oracle import Oracle, catalog
from tests.benchmarks.trials.owner import OwnerArena
from tests.benchmarks.trials.plan import Place
from tests.benchmarks.trials.rest import END_S, gone
from tests.benchmarks.trials.segments import Segments
from tests.benchmarks.trials.witness import core_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from tests.benchmarks.trials.plan import Size, Trial
    from tests.benchmarks.trials.score import Outcome


@dataclass(slots=True)
class Run:
    """A whole run: what is known, and what came of it."""

    folder: Path
    size: Size
    tell: Callable[[str], None]
    outcomes: list[Outcome] = field(default_factory=list)
    cold_s: list[float] = field(default_factory=list)
    oracle: Oracle = field(default_factory=lambda: Oracle(catalog()))
    source: Any = None
    segments: list[Segments] = field(default_factory=list)  # of each pool's engines

    def perform(self, trials: Sequence[Trial], *, cold_starts: int = 2) -> None:
        """Run all trials, those of each place on a pool of their own."""
        with stage.own_ray(self.folder):
            self.tell("building models")
            ray.get(stage.build_models.remote(str(self.folder)), timeout=stage.START_S)
            self.source = ray.remote(num_cpus=0)(stage.Source).options(name=rollouts.SOURCE)
            self.source = self.source.remote(str(self.folder))
            cold = ray.remote(num_cpus=0)(stage.Cold).remote(str(self.folder))
            at = {place: [trial for trial in trials if trial.place is place] for place in Place}
            for place in rollouts.ROLLOUTS:
                if at[place]:
                    self._on_a_pool(at[place], cold, cold_starts if place is Place.PLAIN else 0, place)
            if at[Place.OWNER]:
                if not self.oracle.known:
                    self._on_a_pool((), cold, 0, Place.PLAIN)
                self._with_an_owner(at[Place.OWNER])
        self._ended()

    def _on_a_pool(self, trials: Sequence[Trial], cold: Any, cold_starts: int, place: Place) -> None:
        engines = self.size.engines_at(place)
        self.tell(f"starting {engines} engines: {place.value}")
        # Engines of ranks or with adapters add up in another order: their answers are their own.
        oracle = self.oracle if place.weights_come else Oracle(catalog())
        with stage.a_pool(self.folder, engines, rollouts.ROLLOUTS[place]) as pool:
            observer = Observer(pool)
            arena = Arena(pool, observer, oracle, self.source, self.folder, place=place)
            self.segments.append(arena.rest.segments)
            arena.rest.settle()
            if not oracle.known:
                self.tell("asking for the right answers")
                arena.learn()
            for number, trial in enumerate(trials):
                if number in _spread(cold_starts, len(trials)):
                    self.tell("starting an engine cold, for comparison")
                    self.cold_s.append(ray.get(cold.start_s.remote(), timeout=stage.START_S))
                self.tell(str(trial))
                self.outcomes.append(arena.hold(trial))

    def _with_an_owner(self, trials: Sequence[Trial]) -> None:
        self.tell(f"starting {self.size.engines} engines of an actor that will be killed")
        arena = OwnerArena(self.oracle, self.source, self.folder, self.size.engines)
        self.segments.append(arena.segments)
        for trial in trials:
            self.tell(str(trial))
            self.outcomes.append(arena.hold(trial))
        arena.close()

    def _ended(self) -> None:
        """After Ray: every core that ever lived must be gone, and its shared memory with what takes it away.

        Where Ray kills all processes of an actor in one moment, its next guarded actor does that here, or
        ``rayguard reap``.
        """
        for path in rollouts.witnesses(self.folder).glob("*.witness"):
            core = core_of(path)
            if gone(core, END_S):
                continue
            if self.outcomes:
                self.outcomes[-1].left_over.append(f"core {core.pid} outlived Ray")
            os.kill(core.pid, signal.SIGKILL)
        reap_home(stage.home(self.folder))
        left = [path for segments in self.segments for path in segments.left()]
        if self.outcomes:
            self.outcomes[-1].shm_left += left


def _spread(count: int, over: int) -> set[int]:
    """Return ``count`` places evenly over a run, the first one first."""
    return {round(n * over / count) for n in range(count)} if count else set()
