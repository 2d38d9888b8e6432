"""Holds trials on one gang, one after the other."""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
import threading
import time
from concurrent.futures import Future
from statistics import median
from typing import TYPE_CHECKING, Any

from rayguard.recovery.incident import Outcome as Closed
from rayguard.recovery.journal import default_journal
from tests.benchmarks.trials_gang import stage
from tests.benchmarks.trials_gang.marks import mark, marks, notes
from tests.benchmarks.trials_gang.oracle import Curve, Observed, Told
from tests.benchmarks.trials_gang.plan import STEPS, Kind
from tests.benchmarks.trials_gang.strikes import Strike, StrikeError
from tests.benchmarks.trials_gang.trainer import RECOVERY

if TYPE_CHECKING:
    from pathlib import Path

    import rayguard
    from tests.benchmarks.trials_gang.plan import Trial

HUNG_S = 240.0  # past this a call of a gang will not end any more


class Arena:
    """One gang, and what is done to it."""

    def __init__(self, gang: rayguard.TrainerGang, folder: Path) -> None:
        self.gang, self.folder = gang, folder
        self._ear = stage.Ear(gang)

    def curve(self, seed: int, folder: Path) -> Curve:
        """Train once without any fault.

        Raises:
            RuntimeError: The gang recovered from something nevertheless.
        """
        folder.mkdir()
        before, since = self.gang.status().recoveries, time.time()
        self.call("begin", seed)
        losses = [tuple(self.call("step", step, str(folder))) for step in range(STEPS)]
        digests = tuple(self.call("digest"))
        if self.gang.status().recoveries != before:
            raise RuntimeError(f"a recovery without a fault: {_incidents(since)}")
        return Curve(tuple(losses), digests)

    def call(self, method: str, *args: Any) -> Any:
        """Call the gang.

        Raises:
            stage.HungError: It does not answer.
            Exception: What the call raised.
        """
        answer: Future[Any] = Future()

        def run() -> None:
            try:
                answer.set_result(self.gang.call(method, *args))
            except Exception as error:
                answer.set_exception(error)

        threading.Thread(target=run, daemon=True).start()
        try:
            return answer.result(HUNG_S)
        except TimeoutError:
            if answer.done():  # the call's own
                raise
            faulthandler.dump_traceback(sys.stderr)
            raise stage.HungError(f"{method} did not end within {HUNG_S:.0f} s") from None

    def hold(self, trial: Trial) -> Observed:
        """Hold a trial; return what was seen."""
        stage.wait_for_spares(self.gang)
        folder = self.folder / f"trial-{trial.number}"
        folder.mkdir()
        before, since, began = self.gang.status().recoveries, time.time(), len(self._ear.cuts)
        self.gang._core.causes.clear()  # of earlier trials
        run = _Steps(self, trial, folder, self.call("begin", trial.seed))
        run.make()
        return Observed(
            Curve(tuple(run.losses), tuple(self.call("digest"))),
            fired=marks(folder, "fired-"),
            ran=notes(folder, "ran-"),
            outs=marks(folder, "out-"),
            cuts=self._ear.cuts[began:],
            told=_incidents(since),
            recoveries=self.gang.status().recoveries - before,
            causes=self.gang.status().causes,
            answered_at=run.answered_at,
            normal_s=median(run.took),
            raised=run.raised,
        )


class _Steps:
    """The steps of one trial."""

    def __init__(self, arena: Arena, trial: Trial, folder: Path, pids: list[int]) -> None:
        self._arena, self._trial, self._folder, self._pids = arena, trial, folder, pids
        self.losses: list[Any] = []
        self.took: list[float] = []
        self.raised, self.answered_at = "", 0.0
        self._recoveries = arena.gang.status().recoveries

    def make(self) -> None:
        trial = self._trial
        for step in range(STEPS):
            strike, hands = None, None
            if step == trial.step and trial.kind.by_driver:
                hands = self._killer(median(self.took))
            elif step == trial.step:
                strike = Strike(trial.kind, trial.ranks, trial.moment, str(self._folder))
            began, before = time.monotonic(), self.answered_at
            if hands is not None:
                hands.start()
            self.losses.append(tuple(self._call(step, strike)))
            if hands is not None:
                hands.join()
            if step != trial.step and self.answered_at == before:
                self.took.append(time.monotonic() - began)
        (self._arena.folder / RECOVERY).unlink(missing_ok=True)

    def _call(self, step: int, strike: Strike | None) -> Any:
        """Make a step, and again where the caller gets an error; note when the first answer after a recovery came."""
        try:
            answer = self._arena.call("step", step, str(self._folder), strike)
        except StrikeError as error:
            self.raised = type(error).__name__
            answer = self._arena.call("step", step, str(self._folder), strike)
        if not self.answered_at and self._arena.gang.status().recoveries > self._recoveries:
            self.answered_at = time.monotonic()
        return answer

    def _killer(self, step_s: float) -> threading.Thread:
        """Return a thread that kills at the moment of the trial, as it is started with the step."""
        trial = self._trial
        if trial.kind is Kind.KILL_IN_RECOVERY:
            asked = {"rank": trial.ranks[1], "moment": trial.moment, "folder": str(self._folder)}
            (self._arena.folder / RECOVERY).write_text(json.dumps(asked))
        struck = trial.ranks if trial.kind is Kind.KILL_TWO else trial.ranks[:1]
        return threading.Thread(target=self._kill, args=(struck, trial.moment * step_s), daemon=True)

    def _kill(self, ranks: tuple[int, ...], after_s: float) -> None:
        threading.Event().wait(after_s)
        for rank in ranks:
            mark(self._folder, f"fired-{rank}")
        for rank in ranks:
            os.kill(self._pids[rank], signal.SIGKILL)


def _incidents(since: float) -> list[Told]:
    """Return the incidents that came since then, the first one first."""
    newest = {one.id: one for one in default_journal().read() if one.detected_at >= since}
    found = sorted(newest.values(), key=lambda one: one.detected_at)
    return [Told(one.cause, one.consequences) for one in found if one.outcome is not Closed.OPEN]
