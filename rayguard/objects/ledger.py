"""The table of leases of one process: what it holds, since when, made where, and what is due to end.

Values in, values out. References are never kept here, only their ids: the ledger cannot keep an object alive.
Where the counts come from is ``rayguard.ray_internals.object_refs``, who ends what is due is ``reaper``.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

MOST_LEASES = 500_000
_ROOMY = 4096


@dataclass(slots=True, kw_only=True)
class Lease:
    """One holder's claim on an object of the store: what one process knows about what it holds.

    Invariant: ``ended_at`` is set only on a lease whose ``scope`` has ended, and never before ``opened_at``.
    """

    object_id: str  # hex, as Ray prints it
    site: str = ""  # "file:line in function" that made it; empty: it was not seen being made
    step: int = -1  # since which step this process holds it; -1: since before the first
    task: str = ""  # key of the task that made it, see ``task_key``
    scope: int = 0  # the scope that made it; 0: none, or the user took it out
    lane: str = ""  # the thread or asyncio task that the scope was opened in
    opened_at: int = 0  # when its scope was opened, in ticks of the ledger
    ended_at: int = 0  # when its scope ended; 0: it has not
    keep_steps: int = 1  # so many later scopes of the same line leave it alone
    local: int = 0  # references of this process
    submitted: int = 0  # tasks in flight that have it as an argument
    born: int = 0  # tick of its entry: a snapshot of counts taken before knows nothing of it
    adopted: bool = False  # seen in a pass only


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A scope as the ledger knows it."""

    scope: int
    step: int
    lane: str
    opened_at: int
    keep_steps: int = 1


@dataclass(slots=True)
class Ledger:
    """Leases by object id.

    Invariants: an object that this process lets go of leaves at the next ``refresh``; nothing is due that is
    not from a scope that ended; what the user took out with ``keep`` is never due.
    """

    _leases: dict[str, Lease] = field(default_factory=dict)
    _tick: int = 0
    _refreshed_to: int = 0

    def __len__(self) -> int:
        return len(self._leases)

    def __iter__(self) -> Iterator[Lease]:
        return iter(list(self._leases.values()))

    def get(self, object_id: str) -> Lease | None:
        """Return the lease of ``object_id``, or None."""
        return self._leases.get(object_id)

    @property
    def now(self) -> int:
        """The tick: it grows with every entry, opening and ending."""
        return self._tick

    def open(self, scope: int, step: int, lane: str, keep_steps: int) -> Opened:
        """Note that a scope begins."""
        self._tick += 1
        return Opened(scope=scope, step=step, lane=lane, opened_at=self._tick, keep_steps=keep_steps)

    def made(self, object_id: str, site: str, step: int, *, opened: Opened | None, task: str = "") -> None:
        """Enter an object that was made just now; the scope that made it is ``opened``."""
        if len(self._leases) >= MOST_LEASES and object_id not in self._leases:
            return
        self._tick += 1
        known = self._leases.get(object_id)
        if known is not None and not known.adopted:
            return  # a second handle on the same object
        self._leases[object_id] = Lease(
            object_id=object_id, site=site, step=step, task=task, local=1, born=self._tick
        )
        if opened is not None:
            self._put_into(self._leases[object_id], opened)

    @staticmethod
    def _put_into(lease: Lease, opened: Opened) -> None:
        lease.scope, lease.lane, lease.opened_at = opened.scope, opened.lane, opened.opened_at
        lease.ended_at, lease.keep_steps, lease.step = 0, opened.keep_steps, opened.step

    def claim(self, opened: Opened, tasks: Mapping[str, str]) -> None:
        """Put into ``opened`` what no scope has and ``tasks`` made: keys, and the lines that called."""
        for lease in self._leases.values():
            if lease.scope or lease.opened_at:
                continue
            called_at = tasks.get(lease.task or task_key(lease.object_id))
            if called_at is not None:
                lease.site = lease.site or f"what was called at {called_at}"
                self._put_into(lease, opened)

    def keep(self, object_ids: Iterable[str], heir: Opened | None = None) -> None:
        """Take objects out of their scope: for good, or to be ended with the scope ``heir``."""
        for object_id in object_ids:
            lease = self._leases.get(object_id)
            if lease is None:
                continue
            if heir is not None:
                self._put_into(lease, heir)
            else:
                lease.scope, lease.ended_at = 0, 0
                lease.opened_at = lease.opened_at or 1  # marks it as decided upon: no announcement claims it

    def end(self, opened: Opened) -> list[str]:
        """Note that a scope ended; return what it made and this process still holds."""
        self._tick += 1
        outlived = [lease for lease in self._leases.values() if lease.scope == opened.scope]
        for lease in outlived:
            lease.ended_at = self._tick
        return [lease.object_id for lease in outlived]

    def idle(self) -> bool:
        """Say whether no object here is of any scope."""
        return not any(lease.scope for lease in self._leases.values())

    def crowded(self) -> bool:
        """Say whether so much was entered since the last ``refresh`` that another one is worth its while."""
        return len(self._leases) > max(_ROOMY, 2 * self._refreshed_to)

    def refresh(
        self,
        counts: Mapping[str, tuple[int, int]],
        *,
        asked_at: int,
        step: int,
        adopt: Callable[[str], bool] | None = None,
    ) -> None:
        """Take over Ray's counts (local, submitted) as they were at tick ``asked_at``; forget what is gone.

        What was not seen being made is entered where ``adopt`` says so.
        """
        leases = self._leases
        for dropped in [key for key, lease in leases.items() if key not in counts and lease.born <= asked_at]:
            del leases[dropped]
        for object_id, (local, submitted) in counts.items():
            lease = leases.get(object_id)
            if lease is None:
                if adopt is None or len(leases) >= MOST_LEASES or not adopt(object_id):
                    continue
                lease = leases[object_id] = Lease(object_id=object_id, step=step, born=asked_at, adopted=True)
            lease.local = local
            lease.submitted = submitted
        self._refreshed_to = len(leases)

    def forget(self, object_ids: Iterable[str]) -> None:
        """Leave out what was ended: nothing here refers to it any more."""
        for object_id in object_ids:
            self._leases.pop(object_id, None)

    def due(self, live_lanes: Collection[str]) -> list[Lease]:
        """Return what outlived its scope and is not among the newest of its line, oldest first.

        Newer are the objects of the same line from scopes that were opened after this one's scope ended, in
        the same lane; any lane will do once the lease's own has gone (an asyncio task that is done).
        """
        by_site: dict[str, list[Lease]] = defaultdict(list)
        for lease in self._leases.values():
            if lease.scope and lease.local:
                by_site[lease.site].append(lease)
        found: list[Lease] = []
        for leases in by_site.values():
            scopes = {(other.opened_at, other.lane) for other in leases if other.ended_at}
            found += [
                lease
                for lease in leases
                if lease.ended_at and _newer(lease, scopes, live_lanes) >= lease.keep_steps
            ]
        return sorted(found, key=lambda lease: lease.born)


def _newer(lease: Lease, scopes: set[tuple[int, str]], live_lanes: Collection[str]) -> int:
    own_lane_only = lease.lane in live_lanes
    return sum(
        opened_at > lease.ended_at and (not own_lane_only or lane == lease.lane) for opened_at, lane in scopes
    )


def task_key(object_or_task_id: str) -> str:
    """Return what the hex ids of a task, of its results and of what it put have in common.

    The first byte of a put object's id is the number of the attempt, not of the task (Ray 2.60).
    """
    return object_or_task_id[2:48]
