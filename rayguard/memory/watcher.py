"""Looks at memory in a thread of its own and at the end of each step, and keeps the latest judgement.

Decides nothing and relieves nothing: who asks at a step boundary is ``rayguard.actors.memory.memory_guard``.
"""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING

from rayguard.memory.judge import Judge, JudgeState

if TYPE_CHECKING:
    from collections.abc import Callable

    from rayguard.memory.probes.sample import Probes
    from rayguard.memory.reading import MemorySample

_FULL_S = 5.0  # between two looks at everything; the cheap ones are in between
_KILLS_AT_S = 60.0  # the limit of a container may be changed while it runs
_CLOSE_S = 5.0


class Watcher:
    """One process's watcher. ``changed`` gets each state, in the thread that looked; it must be quick.

    ``looked`` gets what the watcher's own thread saw, between two looks; it may take its time.

    A fork takes the object along but not the thread: the child watches nothing.
    """

    def __init__(
        self,
        probes: Probes,
        judge: Judge,
        *,
        interval_s: float,
        failed: Callable[[Exception], None],
        changed: Callable[[MemorySample, JudgeState], None] = lambda _sample, _state: None,
        looked: Callable[[JudgeState], None] = lambda _state: None,
    ) -> None:
        self.state = JudgeState()
        self.step = -1
        self._probes, self._judge = probes, judge
        self._interval_s, self._failed, self._changed = interval_s, failed, changed
        self._looked = looked
        self._stop = threading.Event()
        self._lock = threading.Lock()  # over judge and probes
        self._limit_at = float("-inf")
        self._kills_at: int | None = None
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._run, name="rayguard-memory", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def step_ended(self) -> JudgeState:
        """Count a step, look at once, and return how things stand. About 0.2 ms; never raises or waits."""
        self.step += 1
        return self.look(wait=False)

    def look(self, *, full: bool = False, wait: bool = True) -> JudgeState:
        """Look now; without ``wait`` only if nobody else is looking."""
        if os.getpid() == self._pid and self._lock.acquire(blocking=wait):
            try:
                self._look(full=full)
            except Exception as error:  # noqa: BLE001 - beside a user's call, or in our own thread
                self._failed(error)
            finally:
                self._lock.release()
        return self.state

    def relieved(self) -> JudgeState:
        """Something was given back: begin a new course, and look at everything."""
        with self._lock:
            self._judge.relieved()
        return self.look(full=True)

    def close(self) -> None:
        """End the thread and give the probes' descriptors back."""
        self._stop.set()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(_CLOSE_S)
        with self._lock:
            self._probes.close()

    def _run(self) -> None:
        full_at = float("-inf")
        while not self._stop.wait(self._interval_s):
            now = time.monotonic()
            full = now - full_at >= _FULL_S
            full_at = now if full else full_at
            self._looked(self.look(full=full))

    def _look(self, *, full: bool) -> None:
        if self._stop.is_set():
            return
        now = time.monotonic()
        if now - self._limit_at >= _KILLS_AT_S:
            self._kills_at, self._limit_at = self._probes.kills_at(), now
        sample = self._probes.sample(self.step) if full else self._probes.quick(self.step, node=True)
        self.state = self._judge.feed(sample, self._kills_at)
        self._changed(sample, self.state)
