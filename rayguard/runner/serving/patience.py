"""How long a server is given before it is taken for one that serves nobody any more. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingPatience:
    """Deadlines, in seconds. ``silent_s``: without a token while requests run, at the least.

    A lost process that crashed, of a server that had begun to listen and is known not to replace its engine,
    is waited for ``crashed_s``; any other for ``lost_s``. The first is less than the 15 s for which a guarded
    client (``rayguard.frameworks.server.watched_call``) waits, after an error, for the server to go.
    """

    silent_s: float = 300.0
    crashed_s: float = 8.0
    lost_s: float = 60.0
    times: float = 10.0  # the longest silence of the same engine that ended by itself
    processes_s: float = 2.0  # between two looks at the processes
    counters_s: float = 5.0  # between two looks at what the server counts
    answer_s: float = 30.0  # for one answer

    @property
    def first_s(self) -> float:
        """Return how long an engine may be silent that has not made a token yet: it may compile."""
        return 3 * self.silent_s

    @property
    def unanswered_s(self) -> float:
        """Return how long it may not tell how far it is: whoever answers may be busy."""
        return 3 * self.silent_s

    @property
    def most_step_s(self) -> float:
        """Return what counts at most between two looks: rayguard itself may have been stopped."""
        return self.counters_s + 2 * self.answer_s
