"""The trainer of the trials: trains, and breaks as it is told."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import rayguard
from tests.benchmarks.trials_gang.marks import mark, note
from tests.benchmarks.trials_gang.plan import Kind
from tests.benchmarks.trials_gang.strikes import Strike, die_writing
from tests.benchmarks.trials_gang.training import Training

RECOVERY = "recovery.json"  # in the gang's folder: which rank is to die in a recovery, and the trial's folder


class TrialTrainer(Training, rayguard.TrainerMixin):
    """One rank. A step is noted as it begins, and the moment at which an error took it out."""

    state_excludes = ("armed", "home")

    def __init__(self, home: str, strategy: str) -> None:
        self.home, self.strategy = home, strategy
        self.armed: Strike | None = None

    def setup(self, group: rayguard.RankGroup) -> None:
        """Build the model; die before or after, where this is a recovery that is to be struck."""
        told = Path(self.home) / RECOVERY
        asked = json.loads(told.read_text()) if group.generation and told.exists() else {}
        struck = asked.get("rank") == group.rank
        if struck and asked["moment"] < 0.5:
            self._die(asked["folder"])
        self.build(group.rank, self.strategy, group.mesh())
        if struck:
            self._die(asked["folder"])

    def _die(self, folder: str) -> None:
        if mark(folder, "fired-in-recovery"):
            os.kill(os.getpid(), signal.SIGKILL)

    def begin(self, seed: int) -> int:
        """Begin a trial; return this rank's process."""
        self.begin_anew(seed)
        return os.getpid()

    def step(self, step: int, folder: str, strike: Strike | None = None) -> tuple[str, str]:
        """Make a step, in which ranks may be struck."""
        note(folder, f"ran-{self.rank}", str(step))
        strike = strike and replace(strike, here=self.rank)
        if strike is not None and strike.mine and strike.kind is Kind.KILL_IN_SNAPSHOT:
            self.armed = strike
        try:
            return self.train(step, strike or (lambda _: False))
        except BaseException:
            mark(folder, f"out-{self.rank}")
            raise

    def digest(self) -> str:
        """Return the digest of all that was learned."""
        return self.fingerprint()

    def save(self, folder: str) -> None:
        """Write this rank's checkpoint."""
        self.write(f"{folder}/{self.rank}.pt")

    def state_dict(self) -> dict[str, Any]:
        """Return the state; die as it is written, where this rank is armed."""
        state = super().state_dict()
        if self.armed is not None:
            die_writing(self.armed)
        return state
