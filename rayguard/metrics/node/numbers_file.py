"""The file in which a process leaves its numbers, so that the node's endpoint can show them.

``<home>/numbers/<pid>-<started>.json``: a process that dies at once loses what it counted since the last
write, at most ``every_s`` seconds of it. The reader is ``rayguard.metrics.node.merged_numbers``.
"""

from __future__ import annotations

import atexit
import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING

from rayguard.home import AGENTS
from rayguard.metrics.node.tables import encode
from rayguard.metrics.sources import readings, sources
from rayguard.process.identity import ProcessId
from rayguard.process.pid_namespace import world
from rayguard.recovery.published import Published

if TYPE_CHECKING:
    from rayguard.metrics.node.tables import Encoded
    from rayguard.recovery.status import Who

VERSION = 1


def directory_of(home: Path | str) -> Path:
    """Return where the processes of a node leave their numbers."""
    return Path(home).absolute() / "numbers"


class NumbersPage(Published[tuple["Who", list["Encoded"]]]):
    """Publishes all that this process shows, every ``every_s`` seconds when something changed.

    ``who`` may be set anew when more is known. Unlike the status page it is also written at a normal end.
    With ``if_read`` it is written only once this node has an agent that reads it.
    """

    def __init__(self, home: Path | str, who: Who, *, every_s: float = 5.0, if_read: bool = False) -> None:
        super().__init__(directory_of(home), "numbers", self._numbers, _written, every_s=every_s)
        self.who = who
        self._readers = Path(home).absolute() / AGENTS if if_read else None

    def start(self) -> None:
        """Publish from a thread of our own until ``close`` or the end of the process."""
        super().start()
        atexit.register(self.close)

    def close(self) -> None:
        """End the thread and leave the last numbers behind. Bounded by one write."""
        atexit.unregister(self.close)
        super().close()

    def _publish(self, *, due: bool) -> bool:
        if self._readers is not None and not self._readers.is_dir():
            return False
        return super()._publish(due=due)

    def _numbers(self) -> tuple[Who, list[Encoded]]:
        return self.who, encode(readings(sources()))


def _written(numbers: tuple[Who, list[Encoded]], at: float) -> bytes:
    (who, families), me = numbers, ProcessId.me()
    page = {
        "version": VERSION,
        "pid": me.pid,
        "started": me.started,
        "world": world(),
        "who": dataclasses.asdict(who),
        "at": at,
        "families": families,
    }
    return json.dumps(page, allow_nan=False, separators=(",", ":")).encode()
