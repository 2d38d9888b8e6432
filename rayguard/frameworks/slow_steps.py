"""Tells of a step of training that takes far longer than the steps before it, with where its thread stands.

Only tells: whether it hangs, its user sees. A step that holds Python's lock in native code for ever lets no
other thread look at it; from outside ``rayguard.process.stacks`` still can.
"""

from __future__ import annotations

import sys
import threading
import time
import traceback
from typing import TYPE_CHECKING

from rayguard.faults.diagnosis import Kind, Scope
from rayguard.frameworks import told
from rayguard.frameworks.step_pace import StepPace
from rayguard.harmless import harmless
from rayguard.recovery.incident import Incident, Outcome

if TYPE_CHECKING:
    from collections.abc import Sequence
    from traceback import FrameSummary

_LOOK_S = 1.0
_FRAMES = 12
_RUNS = "transformers/trainer.py"  # in the stack of a run as long as it goes on
_ADVICE = "see where it stands; of several ranks, the one that stands elsewhere holds the others up"


class SlowSteps:
    """Watches the steps of one run in a thread of its own. A fork takes the object but not the thread."""

    def __init__(self, *, target: str, look_s: float = _LOOK_S, pace: StepPace | None = None) -> None:
        self.pace = pace or StepPace()
        self._target, self._look_s = target, look_s
        self._lock = threading.Lock()
        self._running: tuple[int, float, int] | None = None  # the step, since when, in which thread
        self._incident: Incident | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rayguard-steps", daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def begun(self, step: int) -> None:
        """A step begins, in this thread."""
        with self._lock:
            self._running = step, time.monotonic(), threading.get_ident()

    def ended(self) -> None:
        """The step has ended: it was slow, and no hang."""
        with self._lock:
            running, self._running = self._running, None
            incident, self._incident = self._incident, None
        if running is not None:
            self.pace.took(time.monotonic() - running[1])
        if incident is not None:
            took = f"it ended after {time.monotonic() - running[1]:.0f} s" if running is not None else ""
            told.ended(incident, Outcome.RECOVERED, remedy="none", notes=(took,))

    def close(self) -> None:
        """Watch no more."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(5.0)

    def look(self) -> None:
        """Tell of the step that runs, once, if it has taken too long."""
        with self._lock:
            running, limit = self._running, self.pace.suspicious_s()
            if running is None or limit is None or self._incident is not None:
                return
        step, since, thread = running
        took = time.monotonic() - since
        if took < limit:
            return
        frames = _standing(thread)
        if not any(frame.filename.endswith(_RUNS) for frame in frames):
            with self._lock:
                self._running = None  # an error has ended the run, and nobody told of the step's end
            return
        cause = (
            f"step {step} has taken {took:.0f} s so far, where the longest before took "
            f"{self.pace.longest_s:.1f} s; it stands in {_line(frames[-1])}"
        )
        incident = told.opened(
            Kind.UNKNOWN,
            Scope.PROCESS,
            cause,
            signature="training.slow_step",
            target=self._target,
            advice=_ADVICE,
        )
        stack = tuple(_line(frame) for frame in reversed(frames[-_FRAMES:]))
        with self._lock:
            if self._running == running:
                self._incident = told.with_evidence(incident, stack)
                told.still_open(self._incident)

    def _run(self) -> None:
        while not self._stop.wait(self._look_s):
            with harmless("slow steps"):
                self.look()


def _standing(thread: int) -> Sequence[FrameSummary]:
    """Return the frames of a thread, outermost first."""
    frame = sys._current_frames().get(thread)  # noqa: SLF001 - the only way to other threads
    return traceback.extract_stack(frame) if frame is not None else ()


def _line(frame: FrameSummary) -> str:
    return f"{frame.name} ({'/'.join(frame.filename.split('/')[-3:])}:{frame.lineno})"
