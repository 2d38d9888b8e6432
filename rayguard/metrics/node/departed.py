"""What the dead processes of a node counted, kept so that no counter falls when one of them dies.

A value and its file, ``numbers/departed-<world>.json``: one per boot and pid namespace, as a pid is proved
dead only there. The file names whose numbers are in it, and is replaced in one step *before* theirs are
deleted: who is killed between the two counts nobody twice. Who folds, under which lock, is
``merged_numbers``.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rayguard.metrics.node.merging import OTHER, Places, bounded, counted, jobs_in, merged, without
from rayguard.metrics.node.tables import decode, encode_table

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from rayguard.metrics.node.tables import Instruments, Table

VERSION = 1
MAX_BYTES = 16 << 20
KEEP_JOB_S = 86_400.0


@dataclass(frozen=True, slots=True)
class Departed:
    """The counters of the dead. ``folded``: the files that are in it; ``seen``: when a job last lost one."""

    table: Table = field(default_factory=dict)
    folded: frozenset[str] = frozenset()
    seen: Mapping[str, float] = field(default_factory=dict)  # Ray job -> seconds since the epoch

    def expired(self, alive: Callable[[], set[str]], now: float) -> set[str]:
        """Return the jobs that lost their last process here more than a day ago; ``alive`` has one yet.

        All series of such a job vanish together: to Prometheus they end, and do not fall.
        """
        gone = {job for job, at in self.seen.items() if now - at > KEEP_JOB_S and job != OTHER}
        return gone - alive() if gone else gone

    def after(
        self,
        dead: Mapping[str, Table],
        *,
        expired: set[str],
        places: Mapping[str, Places],
        instruments: Instruments,
        now: float,
    ) -> Departed:
        """Return this with the files ``dead`` folded in and the ``expired`` jobs dropped."""
        tables = [counted(table, instruments) for table in dead.values()]
        whole = merged([without(self.table, expired, instruments), *tables], instruments)
        jobs = {job for table in tables for job in jobs_in(table, instruments)}
        seen = {job: at for job, at in self.seen.items() if job not in expired}
        table = bounded(whole, places, instruments)
        return Departed(table, self.folded | dead.keys(), seen | dict.fromkeys(jobs, now))

    def to_json(self, world: str, instruments: Instruments) -> bytes:
        """Return the content of the file."""
        content = {
            "version": VERSION,
            "world": world,
            "folded": sorted(self.folded),
            "seen": dict(self.seen),
            "families": encode_table(self.table, instruments),
        }
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode()


def file_of(world: str) -> str:
    """Return the name of the file of this boot and pid namespace."""
    return f"departed-{hashlib.blake2s(world.encode(), digest_size=4).hexdigest()}.json"


def parsed(content: bytes, instruments: Instruments) -> Departed | None:
    """Read the content of the file; None for one of a later version, which is left as it is.

    Raises ``ValueError`` for what is none.
    """
    said: Any = json.loads(content)
    try:
        if said["version"] > VERSION:
            return None
        seen = {str(job): float(at) for job, at in said["seen"].items()}
        return Departed(decode(said["families"], instruments, {}), frozenset(said["folded"]), seen)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not the numbers of departed processes: {error!r}") from error
