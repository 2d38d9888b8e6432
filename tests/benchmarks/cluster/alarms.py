"""Which alerts a live Prometheus had, from beginning to end: seen firing, and seen to resolve."""

from __future__ import annotations

import threading
from collections import defaultdict
from typing import TYPE_CHECKING

from typing_extensions import Self

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.benchmarks.cluster.prometheus import Prometheus

_LOOK_S = 0.5
_END_S = 30.0


class Alarms:
    """Looks at the alerts twice a second, for as long as its ``with`` block; ``tell`` hears of who fires."""

    def __init__(self, server: Prometheus, tell: Callable[[str], None]) -> None:
        self._server, self._tell = server, tell
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.firing: set[str] = set()  # now
        self.fired: set[str] = set()
        self.resolved: set[str] = set()  # fired and ended; may fire again
        self.of_jobs: dict[str, set[str]] = defaultdict(set)  # that fired, by job

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(_END_S)

    def _run(self) -> None:
        while not self._stop.wait(_LOOK_S):
            try:
                alerts = [alert for alert in self._server.alerts() if alert.state == "firing"]
            except (OSError, ValueError, KeyError):
                continue  # it is being killed, or starts
            now = {alert.name for alert in alerts}
            for alert in alerts:
                self.of_jobs[alert.labels.get("ray_job", "")].add(alert.name)
            self.resolved |= self.firing - now
            self.fired |= now
            for name in now - self.firing:
                self._tell(name)
            self.firing = now
