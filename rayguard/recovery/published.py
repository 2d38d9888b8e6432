"""A small file in which this process says something of itself, replaced in one step when that changes.

What it says is its user's: ``rayguard.recovery.status`` (for people), ``rayguard.metrics.node.numbers_file``
(for the node's endpoint). A reader never sees half a file; a forked child never writes its parent's.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from typing import TYPE_CHECKING, Generic, TypeVar

from rayguard.harmless import is_news
from rayguard.private import replace_file
from rayguard.process.identity import ProcessId, owner_mark
from rayguard.recovery.tally import TALLY

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

T = TypeVar("T")
_LOG = logging.getLogger("rayguard")
_BUSY_DEADLINE_S = 1.0


class Published(Generic[T]):
    """Keeps ``<directory>/<pid>-<started>.json`` at what ``look`` returns.

    ``write`` makes bytes of it and of the time; ``piece`` is the name of the thread and of errors. ``start``
    gives it a thread of its own; a process that has a loop anyway calls ``publish`` in it instead.
    """

    def __init__(
        self,
        directory: Path,
        piece: str,
        look: Callable[[], T],
        write: Callable[[T, float], bytes],
        *,
        every_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._directory = directory
        self._piece = piece
        self._look = look
        self._write = write
        self._every_s = every_s
        self._clock = clock
        self._me = ProcessId.me()
        self._lock = threading.Lock()
        self._shown: T | None = None  # as it stands on the disk, without its time
        self._tried_at = float("-inf")
        self._failing = ""  # why, while it cannot be written: a full disk is one error, and not one a round
        self._said: set[str] = set()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def publish(self) -> bool:
        """Write the file if that is due; say whether the disk has the present state. Never raises."""
        return self._publish(due=False)

    def publish_now(self) -> bool:
        """Write the file if it is not up to date, due or not; before an end that runs no handlers."""
        return self._publish(due=True)

    def start(self) -> None:
        """Publish from a thread of our own until ``close``, beginning now."""
        if self._thread is None:
            self._stop.clear()
            self._thread = threading.Thread(target=self._run, name=f"rayguard-{self._piece}", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """End the thread and leave the last state behind. Bounded by one write."""
        self._stop.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout=self._every_s + 1.0)
            self._thread = None
        self.publish_now()

    def _run(self) -> None:
        while True:
            self._publish(due=False)
            if self._stop.wait(self._every_s):
                return

    def _publish(self, *, due: bool) -> bool:
        if os.getpid() != self._me.pid:  # a forked child would overwrite its parent's file
            return False
        if not self._lock.acquire(timeout=_BUSY_DEADLINE_S):  # another thread hangs in a write
            return False
        try:
            return self._publish_changes(due=due)
        except Exception as error:  # noqa: BLE001 - a watcher's round; a weight version may be anything
            self._failed(error)
            return False
        finally:
            self._lock.release()

    def _publish_changes(self, *, due: bool) -> bool:
        state = self._look()
        if state == self._shown:
            return True
        now = self._clock()
        if not due and now - self._tried_at < self._every_s:
            return False
        self._tried_at = now
        replace_file(self._directory, f"{owner_mark(self._me)}.json", self._write(state, time.time()))
        self._shown, self._failing = state, ""
        return True

    def _failed(self, error: Exception) -> None:
        reason = f"{type(error).__name__} {getattr(error, 'errno', '')}"
        if reason != self._failing:
            self._failing = reason
            TALLY.guard_error(self._piece)
        if reason not in self._said:
            self._said.add(reason)
            if isinstance(error, OSError) and not is_news(error, self._directory.parent):
                return  # the journal or the recorder has said it
            _LOG.error("the %s file in %s cannot be written: %r", self._piece, self._directory, error)
