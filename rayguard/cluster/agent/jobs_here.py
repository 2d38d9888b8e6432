"""The jobs that have processes or numbers on this node: does each still run, or when did it end?

What Ray ends with a job is no fault (``death_verdict``), and the alerts of a job that is over stop: its
counters stay for a day, so each node says of them that their job is over (``rayguard_job_over``). A job that
has ended does not begin again, so it is not asked for any more.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rayguard.harmless import harmless
from rayguard.metrics.node.merging import OTHER
from rayguard.ray_internals.rows import OURS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from rayguard.ray_internals.rows import JobRow

AGAIN_S = 60.0  # a look of every node of a large cluster must not be felt by Ray's control process
SOON_S = 0.5  # after a death, which a job's end may explain


@dataclass(frozen=True, slots=True)
class Known:
    """What Ray said of a job. ``ended_at`` is wall clock, 0 while it runs; ``ours``: of rayguard itself.

    ``driver`` is the worker id of the program that the job is.
    """

    asked_at: float  # monotonic
    ended_at: float = 0.0
    ours: bool = False
    driver: str = ""


class JobsHere:
    """``ask`` returns Ray's row of a job, None for one that it does not know (any more)."""

    def __init__(
        self, ask: Callable[[str], JobRow | None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._ask, self._clock = ask, clock
        self._lock = threading.Lock()  # the look at the node and the one at deaths have a thread each
        self._known: dict[str, Known] = {}

    def look(self, jobs: Iterable[str]) -> Mapping[str, bool]:
        """Say of each of these jobs whether it is over, and forget all others."""
        wanted = {job for job in jobs if job not in ("", OTHER)}
        for job in wanted:
            self.of(job, AGAIN_S)
        with self._lock:
            self._known = {job: known for job, known in self._known.items() if job in wanted}
            return {job: bool(known.ended_at) for job, known in self._known.items()}

    def changed(self, job_id: str) -> None:
        """Have the next look ask of this job: it may be over."""
        with self._lock:
            known = self._known.get(job_id)
            if known is not None and not known.ended_at:
                del self._known[job_id]

    def of(self, job_id: str, not_older_s: float = SOON_S) -> Known:
        """Return what is known of a job that still ran so many seconds ago. Never raises: a death is told."""
        now = self._clock()
        with self._lock:
            known = self._known.get(job_id)
        if known is not None and (known.ended_at or now - known.asked_at < not_older_s):
            return known
        row = None
        with harmless("agent_jobs"):
            row = self._ask(job_id)
        if row is None:  # Ray forgets only what has ended; it may also be that it could not be asked
            return known or Known(now)
        ended_at = 0.0 if row.running else row.ended_at or time.time()
        known = Known(now, ended_at, row.namespace == OURS, row.driver)
        with self._lock:
            self._known[job_id] = known
        return known
