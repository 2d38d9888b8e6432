"""What this process knows of its references: one ledger for objects, one for actors, and what was done.

Process-wide state behind one lock. Nothing here calls Ray: ``reaper``, ``hooks`` and ``remote_scopes`` do.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
import weakref
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rayguard.objects.ledger import Ledger, Opened

if TYPE_CHECKING:
    from typing import TypeAlias

    _Runner: TypeAlias = threading.Thread | asyncio.Task[object]

log = logging.getLogger("rayguard")


@dataclass(slots=True)
class Totals:
    """What was done since the process started; for metrics."""

    scopes: int = 0
    ended: int = 0
    ended_bytes: int = 0
    handles_ended: int = 0
    waiting: int = 0  # due, and left alone, at the last scope's end


@dataclass(slots=True, eq=False)
class Live:
    """A scope while it is open in this process."""

    opened: Opened  # in the ledger of objects
    for_actors: Opened  # the same in the ledger of actors, which has ticks of its own
    across: bool
    parent: Live | None = None
    over: bool = False
    tasks: dict[str, str] = field(default_factory=dict)  # key of a task -> the line that called it
    actors: dict[str, dict[str, str]] = field(default_factory=dict)  # the same, by the actor that was called


class Holdings:
    """The state. Invariant: only ids, never references, so that nothing is kept alive by being watched."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.objects = Ledger()
        self.actors = Ledger()
        self.totals = Totals()
        self.step = 0  # the one that runs now
        self.tracking = False  # note all that user code makes, in a scope or not
        self.core: object = None
        self._numbers = itertools.count(1)
        self._lanes: weakref.WeakKeyDictionary[_Runner, str] = weakref.WeakKeyDictionary()

    def connect(self, core: object) -> None:
        """Begin anew where Ray was started anew: ids of another cluster mean nothing."""
        with self.lock:
            if core is not self.core:
                self.core, self.objects, self.actors = core, Ledger(), Ledger()

    def number(self) -> int:
        """Return a number that no scope of this process has."""
        return next(self._numbers)

    def lane(self) -> str:
        """Return the name of the thread or asyncio task that runs now; it counts as live while it does."""
        runner = _runner()
        with self.lock:
            if runner not in self._lanes:
                self._lanes[runner] = f"lane-{next(self._numbers)}"
            return self._lanes[runner]

    def live_lanes(self) -> set[str]:
        """Return the lanes that may open another scope."""
        with self.lock:
            return {name for runner, name in self._lanes.items() if not _is_done(runner)}


def _runner() -> _Runner:
    try:
        task: _Runner | None = asyncio.current_task()
    except RuntimeError:
        task = None
    return task or threading.current_thread()


def _is_done(runner: _Runner) -> bool:
    return not runner.is_alive() if isinstance(runner, threading.Thread) else runner.done()


HOLDINGS = Holdings()
CURRENT: ContextVar[Live | None] = ContextVar("rayguard_object_scope", default=None)


def current() -> Live | None:
    """Return the innermost scope that is open around the caller."""
    live = CURRENT.get()
    while live is not None and live.over:  # a task that outlives the scope it was started in
        live = live.parent
    return live
