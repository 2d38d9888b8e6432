"""A whole run: Ray and its pools started and ended, the trials held one after the other.

A single trial is ``arena``; where all of it happens is ``stage``.
"""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import ray

from tests.benchmarks.trials import stage
from tests.benchmarks.trials.arena import Arena, gone
from tests.benchmarks.trials.observer import Observer
from tests.benchmarks.trials.oracle import Oracle, catalog
from tests.benchmarks.trials.owner import OwnerArena
from tests.benchmarks.trials.plan import Fault
from tests.benchmarks.trials.witness import core_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from tests.benchmarks.trials.plan import Size, Trial
    from tests.benchmarks.trials.score import Outcome

_END_S = 30.0


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

    def perform(self, trials: Sequence[Trial], *, cold_starts: int = 2) -> None:
        """Run all trials; those with a standby, or of an owner, on a pool of their own."""
        with stage.own_ray(self.folder):
            self.tell("building models")
            ray.get(stage.build_models.remote(str(self.folder)), timeout=stage.START_S)
            self.source = ray.remote(num_cpus=0)(stage.Source).options(name=stage.SOURCE)
            self.source = self.source.remote(str(self.folder))
            cold = ray.remote(num_cpus=0)(stage.Cold).remote(str(self.folder))
            owners = [trial for trial in trials if trial.fault is Fault.KILL_OWNER]
            for standby in (False, True):
                here = [trial for trial in trials if trial.standby is standby and trial not in owners]
                if here or (not standby and not self.oracle.known):
                    self._on_a_pool(here, cold, cold_starts, standby=standby)
            if owners:
                self._with_an_owner(owners)
        self._ended()

    def _on_a_pool(self, trials: Sequence[Trial], cold: Any, cold_starts: int, *, standby: bool) -> None:
        self.tell(f"starting {self.size.engines} engines" + (", each with a standby" if standby else ""))
        with stage.a_pool(self.folder, self.size.engines, standby=standby) as pool:
            observer = Observer(pool)
            arena = Arena(pool, observer, self.oracle, self.source, self.folder, standby=standby)
            arena.settle()
            if not self.oracle.known:
                self.tell("asking for the right answers")
                arena.learn()
            for number, trial in enumerate(trials):
                if not standby and number in _spread(cold_starts, len(trials)):
                    self.tell("starting an engine cold, for comparison")
                    self.cold_s.append(ray.get(cold.start_s.remote(), timeout=stage.START_S))
                self.tell(str(trial))
                self.outcomes.append(arena.hold(trial))

    def _with_an_owner(self, trials: Sequence[Trial]) -> None:
        self.tell(f"starting {self.size.engines} engines of an actor that will be killed")
        arena = OwnerArena(self.oracle, self.source, self.folder, self.size.engines)
        for trial in trials:
            self.tell(str(trial))
            self.outcomes.append(arena.hold(trial))
        arena.close()

    def _ended(self) -> None:
        """After Ray: every core that ever lived must be gone."""
        for path in stage.witnesses(self.folder).glob("*.witness"):
            core = core_of(path)
            if gone(core, _END_S):
                continue
            if self.outcomes:
                self.outcomes[-1].left_over.append(f"core {core.pid} outlived Ray")
            os.kill(core.pid, signal.SIGKILL)


def _spread(count: int, over: int) -> set[int]:
    """Return ``count`` places evenly over a run, the first one first."""
    return {round(n * over / count) for n in range(count)} if count else set()
