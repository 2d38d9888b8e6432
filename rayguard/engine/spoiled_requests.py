"""Requests that an engine ended since their logits were NaN or infinite: counted, logged, in the journal.

How that is seen and how such a request ends is each adapter's (``Engine.tells_of_spoiled``). Nothing is
restarted for a request: where many are hit it is the weights, which only a push can mend.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from rayguard.faults.diagnosis import Kind, Scope
from rayguard.harmless import harmless
from rayguard.recovery.incident import Incident, Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rayguard.recovery.tally import EngineTally

_log = logging.getLogger("rayguard")
LOOK_ENV = "RAYGUARD_LOOK_AT_LOGITS"  # "1" for the processes of an engine whose owner wants to be told
SPOILED = "NumericError"  # what the reason of such an end begins with
_PAUSE_S = 30.0  # between two incidents: where the weights are NaN, each request of each batch is hit
_NAMED = 8


class SpoiledRequests:
    """Those of one engine slot. ``take`` never blocks: a thread, which ends by itself, writes the journal.

    Args:
        noticed: Writes and counts an incident that is over.
        tally: Its ``spoiled`` grows by one for each request.
        pause_s: Seconds between two incidents; who comes meanwhile is in the next one.
    """

    def __init__(
        self, noticed: Callable[[Incident], object], tally: EngineTally, pause_s: float = _PAUSE_S
    ) -> None:
        self._noticed, self._tally, self._pause_s = noticed, tally, pause_s
        self._lock = threading.Lock()
        self._names: list[str] = []  # not told yet: the first ones
        self._count = 0  # and how many
        self._telling = False
        self._closed = threading.Event()

    def take(self, names: Sequence[str]) -> None:
        """Note that these requests were ended."""
        with self._lock:
            self._tally.spoiled += len(names)
            self._count += len(names)
            self._names += names[: max(0, _NAMED - len(self._names))]
            if self._telling:
                return
            self._telling = True
        threading.Thread(target=self._tell, name="rayguard-spoiled", daemon=True).start()

    def close(self) -> None:
        """Tell what there is without waiting."""
        self._closed.set()

    def _tell(self) -> None:
        while True:
            with self._lock:
                names, count = self._names, self._count
                self._names, self._count = [], 0
                if not count:
                    self._telling = False
                    return
            with harmless("journal"):
                incident = incident_of_spoiled(names, count)
                _log.error("rayguard: %s", incident.cause)
                self._noticed(incident)
            self._closed.wait(self._pause_s)


def incident_of_spoiled(names: Sequence[str], count: int) -> Incident:
    """Return the incident of ``count`` ended requests, of which ``names`` are the first."""
    told = ", ".join(repr(name) for name in names)
    more = f" and {count - len(names)} more" if count > len(names) else ""
    return Incident(
        kind=Kind.NUMERIC_NAN.value,
        scope=Scope.REQUEST.value,
        cause=f"logits were NaN or infinite: ended with an error instead of garbage: {told}{more}",
        signature="rayguard.logits",
        confidence=0.97,
        advice=(
            "look for NaN in the weights (a bad step, a half-finished push, float16) and push sound ones; "
            "where the same few requests are hit again, look at their prompts"
        ),
        requests=count,
        outcome=Outcome.ANSWERED,
    )
