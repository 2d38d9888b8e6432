"""What Ray says of an actor whose process has died: asked by its engine, which is no process of Ray's.

``python -m rayguard.engine.adoption.actor_fate GCS_ADDRESS ACTOR_ID`` writes the actor's state, one line a
second, until its standard input is closed. ``ActorFate`` runs that beside an engine core: there, Ray's client
would leave its threads behind.
"""

from __future__ import annotations

import contextlib
import select
import subprocess
import sys
import threading
from typing import IO

UNKNOWN, NOBODY_KNOWS = "", "?"
_EVERY_S = 1.0
_TRIES = 3


class ActorFate:
    """A process that asks, and its last answer. ``close`` ends it; it ends by itself with this process."""

    def __init__(self, gcs_address: str, actor_id: str) -> None:
        # As Ray names it: RESTARTING, ALIVE, DEAD; '' until there is an answer, '?' where Ray gives none.
        self.state = UNKNOWN
        command = [sys.executable, "-m", __name__, gcs_address, actor_id]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert self._process.stdout is not None
        name = "rayguard-actor-fate"
        threading.Thread(target=self._read, args=(self._process.stdout,), name=name, daemon=True).start()

    def _read(self, answers: IO[str]) -> None:
        with contextlib.suppress(OSError, ValueError):
            for line in answers:
                self.state = line.strip()
        self.state = self.state or NOBODY_KNOWS

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()


def _main(gcs_address: str, actor_id: str) -> None:
    from rayguard.ray_internals.gcs_tables import actor_row_there  # noqa: PLC0415 - imports Ray, which takes a second

    failures = 0
    while True:
        try:
            row = actor_row_there(gcs_address, actor_id)
            failures = 0
        except Exception:  # noqa: BLE001 - whatever Ray's client raises
            row, failures = None, failures + 1
        if not 0 < failures < _TRIES:  # a control process that is busy just now
            print(NOBODY_KNOWS if row is None else row.state, flush=True)  # noqa: T201 - it is asked for
        if select.select([sys.stdin], [], [], _EVERY_S)[0]:
            return  # closed: whoever asked has ended, or knows enough


if __name__ == "__main__":
    _main(sys.argv[1], sys.argv[2])
