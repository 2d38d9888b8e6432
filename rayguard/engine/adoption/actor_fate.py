"""What Ray says of an actor whose process has died: asked by its engine, which is no process of Ray's.

``python -m rayguard.engine.adoption.actor_fate GCS_ADDRESS ACTOR_ID [OWNER LIFE]`` writes the actor's
state, one line a second, until its standard input is closed. Of an actor of a pool it is that of the pool's
owner, where this has begun another life since and makes its actors anew. ``ActorFate`` runs that beside an
engine core: there, Ray's client would leave its threads behind.
"""

from __future__ import annotations

import contextlib
import select
import subprocess
import sys
import threading
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from rayguard.ray_internals.rows import ActorRow

UNKNOWN, NOBODY_KNOWS = "", "?"
_EVERY_S = 1.0
_TRIES = 3


class ActorFate:
    """A process that asks, and its last answer. ``close`` ends it; it ends by itself with this process."""

    def __init__(self, gcs_address: str, actor_id: str, *owner: str) -> None:
        # As Ray names it: RESTARTING, ALIVE, DEAD; '' until there is an answer, '?' where Ray gives none.
        self.state = UNKNOWN
        command = [sys.executable, "-m", __name__, gcs_address, actor_id, *owner]
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


def said(row: ActorRow | None, owner: ActorRow | None, life: int) -> str:
    """Return the state of an actor, or of its pool's owner where that lives again since its life ``life``."""
    if owner is not None and owner.lives > life and owner.returns:
        return owner.state
    return NOBODY_KNOWS if row is None else row.state


def _main(gcs_address: str, actor_id: str, owner_id: str = "", life: str = "0") -> None:
    from rayguard.ray_internals.gcs_tables import actor_row_there  # noqa: PLC0415 - imports Ray, which takes a second

    failures = 0
    while True:
        try:
            row = actor_row_there(gcs_address, actor_id)
            owner = actor_row_there(gcs_address, owner_id) if owner_id else None
            failures = 0
        except Exception:  # noqa: BLE001 - whatever Ray's client raises
            row, owner, failures = None, None, failures + 1
        if not 0 < failures < _TRIES:  # a control process that is busy just now
            print(said(row, owner, int(life)), flush=True)  # noqa: T201 - it is asked for
        if select.select([sys.stdin], [], [], _EVERY_S)[0]:
            return  # closed: whoever asked has ended, or knows enough


if __name__ == "__main__":
    _main(*sys.argv[1:])
