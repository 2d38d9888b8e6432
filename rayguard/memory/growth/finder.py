"""Finds what makes memory grow: nothing is switched on until growth is proven, and then for a few steps only.

``step_ended`` is called between two steps, in the thread that makes them. Relieves and watches nothing:
which quantity grows, ``growing.Courses`` says; who holds what in Ray's object store, ``rayguard.objects``.
The node and disks are sums of what others hold.
"""

from __future__ import annotations

import os
import time
from math import isnan
from statistics import median
from typing import TYPE_CHECKING

from rayguard.memory.growth.finding import Finding, GrowthEvidence, explain
from rayguard.memory.growth.heap_census import SHARE, HeapCensus
from rayguard.memory.growth.lines import Lines
from rayguard.memory.growth.native import NativeLooks
from rayguard.memory.reading import Quantity

if TYPE_CHECKING:
    from collections.abc import Callable

    from rayguard.memory.growth.growing import Growing

STEPS = 3  # are traced
AGAIN_STEPS = 50  # must pass before the same quantity is looked at again
AGAIN_S = 300.0
PATIENCE_S = 60.0  # where steps are short, the census skips some
MOST_S = 900.0  # then a hunt ends with what it has
_ALLOCATED = (Quantity.PRIVATE, Quantity.HEAP, Quantity.NATIVE)
_MEMORY = (*_ALLOCATED, Quantity.MAPPED, Quantity.SHM)
_ON_DEVICE = (Quantity.TORCH, Quantity.DEVICE)


class LeakFinder:
    """One process's finder. Not for two threads at once. Keeps nothing of the user's alive.

    ``steps`` are traced at a time; the census takes a ``share`` of the time at most. Whatever goes wrong
    inside ends the hunt and is raised, for the caller to count.
    """

    def __init__(
        self, *, steps: int = STEPS, share: float = SHARE, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._steps, self._share, self._clock = max(2, steps), share, clock
        self._hunt: _Hunt | None = None
        self._ended_at = float("nan")  # the last step
        self._hunted: dict[tuple[Quantity, int], tuple[int, float]] = {}

    def step_ended(self, step: int, growing: Growing | None) -> Finding | None:
        """Go on with the hunt that is on, or begin one for ``growing``; return what was found, once.

        0.1 us where nothing grows. ``growing`` counts only where no hunt is on: one that has begun is ended.
        """
        if self._hunt is None:
            before, self._ended_at = self._ended_at, self._clock()
            if growing is not None:
                self._begin(step, growing, self._ended_at - before)
            return None
        hunt = self._hunt
        try:
            if hunt.pid != os.getpid():  # a fork took the object along
                self.close()
                return None
            if not hunt.step_ended(step):
                return None
            self._hunt = None
            self._hunted[hunt.growing.quantity, hunt.growing.pid] = step, self._clock()
            return hunt.finding()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the hunt that is on, if any, without a finding."""
        hunt, self._hunt = self._hunt, None
        if hunt is not None:
            hunt.close()

    def _begin(self, step: int, growing: Growing, took_s: float) -> None:
        if growing.quantity not in (*_MEMORY, *_ON_DEVICE) or not self._is_time(step, growing):
            return
        hunt = self._hunt = _Hunt(growing, took_s, self._steps, self._share, self._clock)
        try:
            hunt.begin(step)
        except BaseException:
            self.close()
            raise

    def _is_time(self, step: int, growing: Growing) -> bool:
        at_step, at = self._hunted.get((growing.quantity, growing.pid), (None, 0.0))
        return at_step is None or not (0 <= step - at_step < AGAIN_STEPS or self._clock() - at < AGAIN_S)


class _Hunt:
    """Some steps of one growth, looked at closely."""

    def __init__(
        self, growing: Growing, before_s: float, steps: int, share: float, clock: Callable[[], float]
    ) -> None:
        self.growing, self.pid, self._before_s = growing, os.getpid(), before_s
        self._steps, self._clock = steps, clock
        own = growing.pid in (0, self.pid)
        self._lines = Lines() if own and growing.quantity in _ALLOCATED else None
        self._census = HeapCensus(share=share, clock=clock) if own else None
        self._native = (
            NativeLooks(growing.pid or self.pid, segments=growing.quantity is Quantity.SHM)
            if growing.quantity in _MEMORY
            else None
        )
        self._ended = 0
        self._began_at = self._boundary = self._clock()
        self._step_s: list[float] = []
        self._looking_s = 0.0

    def begin(self, step: int) -> None:
        """Take the first look, then switch tracing on."""
        self._look(step)
        if self._lines is not None:
            self._lines.begin()
        self._boundary = self._clock()

    def step_ended(self, step: int) -> bool:
        """Look again; return whether enough was seen."""
        now = self._clock()
        self._step_s.append(now - self._boundary)
        self._ended += 1
        if self._lines is not None:
            self._lines.take(step)
        self._look(step)
        if self._ended >= self._steps and self._lines is not None:
            self._lines.close()
        self._boundary = self._clock()
        self._looking_s += self._boundary - now
        return self._enough()

    def finding(self) -> Finding | None:
        """Return what explains the growth."""
        lines = self._lines.end() if self._lines is not None else ()
        held, kinds = self._census.found() if self._census is not None else ((), ())
        native = self._native.found() if self._native is not None else None
        seen = GrowthEvidence(lines=lines, held=held, kinds=kinds, native=native, notes=self._notes())
        found = explain(self.growing, seen, self.pid)
        self.close()
        return found

    def close(self) -> None:
        """Switch off what is on."""
        if self._lines is not None:
            self._lines.close()

    def _look(self, step: int) -> None:
        due = self._census is not None and self._census.due
        # Where steps are short, there are many until the census has seen enough
        if self._native is not None and (due or self._ended <= self._steps):
            self._native.look(step)
        if self._census is not None and due:
            self._census.look(step, last=self._census.passes >= self._steps)

    def _enough(self) -> bool:
        if self._ended < self._steps:
            return self._clock() - self._began_at > MOST_S
        waits = self._census is not None and not self._census.off and self._census.passes <= self._steps
        return not waits or self._clock() - self._began_at > PATIENCE_S

    def _notes(self) -> tuple[str, ...]:
        notes = [part.note for part in (self._lines, self._census, self._native) if part is not None]
        steps = f"{self._ended} steps were looked at, for {self._looking_s:.2f} s in all"
        if self._lines is not None and self._lines.traced:
            before = "" if isnan(self._before_s) else f" ({self._before_s:.2f} s before)"
            traced = self._step_s[: self._lines.traced]
            steps += f"; while lines were traced a step took {median(traced):.2f} s{before}"
        return tuple(note for note in (*notes, steps) if note)
