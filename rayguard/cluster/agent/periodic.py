"""The rounds of a node's agent: each in a thread of its own, so that one that hangs holds up no other.

An error ends a round and is counted; the next one comes as if nothing had been. What a round does is
bounded by the deadlines inside it; one that takes longer than it should is named by ``late``.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rayguard.harmless import harmless

if TYPE_CHECKING:
    from collections.abc import Callable

_CLOSE_S = 2.0


@dataclass(slots=True)
class _Round:
    name: str
    every_s: Callable[[], float]
    do: Callable[[], None]
    deadline_s: float
    now: threading.Event = field(default_factory=threading.Event)
    began: float | None = None  # monotonic, while it runs
    thread: threading.Thread | None = None


class PeriodicTasks:
    """Runs functions again and again until ``stop``."""

    def __init__(self) -> None:
        self._rounds: dict[str, _Round] = {}
        self.stopped = threading.Event()

    def start(
        self, name: str, do: Callable[[], None], *, every_s: Callable[[], float], deadline_s: float = 10.0
    ) -> None:
        """Run ``do`` now, and again ``every_s()`` seconds after each end."""
        one = self._rounds[name] = _Round(name, every_s, do, deadline_s)
        one.thread = threading.Thread(target=self._run, args=(one,), name=f"rayguard-{name}", daemon=True)
        one.thread.start()

    def kick(self, name: str) -> None:
        """Let the next round of this name come at once."""
        if name in self._rounds:
            self._rounds[name].now.set()

    def late(self) -> list[str]:
        """Return the names of the rounds that run longer than they should."""
        now = time.monotonic()
        return [
            one.name
            for one in self._rounds.values()
            if one.began is not None and now - one.began > one.deadline_s
        ]

    def stop(self) -> None:
        """Begin no further round, and wait shortly for those that run."""
        self.stopped.set()
        until = time.monotonic() + _CLOSE_S
        for one in self._rounds.values():
            one.now.set()
        for one in self._rounds.values():
            if one.thread is not None and one.thread is not threading.current_thread():
                one.thread.join(max(0.0, until - time.monotonic()))

    def _run(self, one: _Round) -> None:
        while not self.stopped.is_set():
            one.began = time.monotonic()
            with harmless(f"agent_{one.name}"):
                one.do()
            one.began = None
            wait_s = 1.0
            with harmless(f"agent_{one.name}"):
                wait_s = one.every_s()
            one.now.wait(wait_s)
            one.now.clear()
