"""Between trials: a pool comes to rest, and what a trial left behind is told."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import TYPE_CHECKING, Any

import ray

from rayguard.errors import RayguardError
from rayguard.process.identity import ProcessId
from tests.benchmarks.trials import strike
from tests.benchmarks.trials.batch import ANSWER_S
from tests.benchmarks.trials.plan import Place
from tests.benchmarks.trials.segments import Segments

if TYPE_CHECKING:
    from rayguard import RolloutPool
    from tests.benchmarks.trials.score import Outcome
    from tests.benchmarks.trials.weights import CurrentWeights

SETTLE_S = 300.0
SETTINGS_S = 30.0  # for safe settings to be taken back, once an engine serves: many times their probation
END_S = 30.0
_PAUSE_S = 0.6  # longer than a safe setting's probation


class Rest:
    """Brings one pool to rest."""

    def __init__(self, pool: RolloutPool, weights: CurrentWeights, place: Place) -> None:
        self.pool, self.weights, self.place = pool, weights, place
        self.engines = len(pool.handles)
        self.segments = Segments()

    def settle(self, outcome: Outcome | None = None) -> None:
        """Wait until all engines serve with the current weights, with no safe setting, standbys ready.

        What an engine that died left behind, and settings that stay, are noted in ``outcome``.
        """
        pause, until = threading.Event(), time.monotonic() + SETTLE_S
        why, slow_since = "it was never looked at", 0.0
        while time.monotonic() < until:
            try:
                why, slow = self._unsettled()
                if not why:
                    break
                slow_since = slow_since or time.monotonic() if slow else 0.0
                if slow_since and time.monotonic() - slow_since > SETTINGS_S and outcome is not None:
                    outcome.settings_left_on.append(why)
                    outcome, slow_since = None, 0.0
            except (ray.exceptions.RayError, RayguardError) as error:
                why = f"{type(error).__name__}: {error}"
            pause.wait(_PAUSE_S)
        else:
            raise RuntimeError(f"the pool does not come to rest: {why}; it says {self.pool.status()}")
        if outcome is not None:
            outcome.shm_left += self.segments.left()
        self.note()

    def note(self) -> None:
        """Note the shared memory of the engines that live."""
        for handle in self.pool.handles.values():
            pids = self._status(handle)["pids"]
            self.segments.note([pids["core"], *pids["workers"]])

    def _unsettled(self) -> tuple[str, bool]:
        """Say what is still to come, and whether that is a safe setting."""
        self.pool.wait_ready(timeout_s=SETTLE_S)
        self.weights.bring()
        handles = self.pool.handles
        if len(handles) < self.engines:
            return f"there are {len(handles)} of {self.engines} engines", False
        for name, handle in handles.items():
            status = self._status(handle)
            missing = self.weights.missing(handle, status)
            if not status["serving"] or status["state"] not in {"serving", "in a call"} or missing:
                return f"{name} is {status['state']} {missing}: {status}", False
            if self.place is Place.STANDBY and status["standby"] != "ready":
                return f"{name} has a standby that is {status['standby']}", False
            if status["settings"]:
                self._take_back()
                return f"{name} runs with {status['settings']}", True
        return "", False

    @staticmethod
    def _status(handle: Any) -> dict[str, Any]:
        status: dict[str, Any] = ray.get(handle.engine_status.remote(), timeout=strike.STATUS_S)
        return status

    def _take_back(self) -> None:
        """Let every engine see a request: safe settings are taken back between requests."""
        prompts = [[20, 7, 90, 11]] * (4 * self.engines)
        self.pool.generate(prompts, {"temperature": 0.0, "max_tokens": 2}, deadline_s=ANSWER_S)


def leftovers(outcome: Outcome, blow: strike.Blow) -> None:
    """Processes that were hit, or forked, must be gone soon after."""
    for what, pid in (("the process that was hit", blow.pid), ("the forked child", blow.child)):
        process = ProcessId.of(pid) if pid else None
        if process is not None and not gone(process, END_S):
            outcome.left_over.append(f"{what}, {pid}, is in state {process.state()}")
            os.kill(pid, signal.SIGKILL)


def gone(process: ProcessId, within_s: float) -> bool:
    """Say whether a process is gone within that time."""
    pause, until = threading.Event(), time.monotonic() + within_s
    while process.alive():
        if time.monotonic() > until:
            return False
        pause.wait(0.05)
    return True
