"""Who holds which rank of a gang, and how all of them begin a generation."""

from __future__ import annotations

import os
import time
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rayguard.errors import GaveUpError, RecoveryTimeoutError
from rayguard.harmless import harmless
from rayguard.trainers.gang.kept.gang_copies import GangCopies
from rayguard.trainers.gang.kept.rank_files import new_gang_name
from rayguard.trainers.gang.rank_group import JoinOrder, StateOrigin
from rayguard.trainers.gang.rank_watch import Ended, RankWatch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rayguard.trainers.gang.hosts import GangHost, GangHosts
    from rayguard.trainers.gang.orders import Orders
    from rayguard.trainers.gang.policy import GangPolicy


@dataclass(frozen=True, slots=True)
class GangSize:
    """What the user asked for."""

    ranks: int
    spares: int
    backend: str


class GangSeats:
    """The ranks' actors, and the spare ones."""

    def __init__(
        self, name: str, orders: Orders, room: GangHosts, wanted: GangSize, policy: GangPolicy
    ) -> None:
        self.gang, self.orders, self.room = new_gang_name(), orders, room
        self.size, self.generation = wanted.ranks, -1
        self._name, self._wanted, self._policy = name, wanted, policy
        self._ranks: list[GangHost] = []
        self._kept_by: tuple[str, ...] = ()  # the nodes of the ranks' states; none: there are no states yet
        self._joined = -1  # the last generation that all joined
        self.found_dead: set[int] = set()  # ranks whose process had died unnoticed; who tells of it clears it
        self._saved_layout = self._tried_layout = 0
        self.copies = GangCopies(self.gang, on=policy.copies > 0)
        weakref.finalize(
            self, self.copies.close
        ).atexit = False  # a gang that nobody holds: its ranks go, too

    def taken(self) -> list[GangHost]:
        """Return the ranks' actors, in their order."""
        return list(self._ranks)

    @property
    def spares(self) -> int:
        """Actors that wait, or start, to take a rank."""
        return len(self._spare())

    def fill(self, *, replace_all: bool = False) -> None:
        """Give each rank whose actor is gone another one: a spare, or a new one; else shrink.

        Raises:
            GaveUpError: There are too few actors to go on with.
        """
        if replace_all:
            for host in self._ranks:
                self.room.end(host)
        before = [host.gone for host in self._ranks]
        self.room.greeted(self._ranks)  # ends those whose process died unnoticed: after their answer, say
        self.found_dead |= {rank for rank, host in enumerate(self._ranks) if host.gone and not before[rank]}
        kept = [None if host.gone else host for host in self._ranks] or [None] * self.size
        missing = [rank for rank, host in enumerate(kept) if host is None]
        if missing:
            found = self._found(len(missing))
            for rank, host in zip(missing, found, strict=False):
                kept[rank] = host
        here = [host for host in kept if host is not None]
        least = self._policy.min_ranks or self.size
        if len(here) < min(least, len(kept)):
            why = f"{len(kept) - len(here)} of {len(kept)} ranks have no process, and get none"
            raise GaveUpError(self._name, f"{why}{self._last_error()}", (), _NO_ROOM)
        self._seat(here)

    def resize(self, ranks: int) -> None:
        """Have ``ranks`` ranks from the next generation on.

        Raises:
            RecoveryTimeoutError: There is no room for more, or no actor came up in it.
        """
        more = ranks - len(self._ranks)
        if more > 0:
            free = len(self._spare()) + len(self.room.bundles_free())
            if more > free:
                self.room.make_room(more - free)
            found = self._found(more)
            if len(found) < more:
                raise RecoveryTimeoutError(f"not enough new ranks came up{self._last_error()}")
            self._seat([*self._ranks, *found])
        else:
            leaving = self._ranks[ranks:]
            self._seat(self._ranks[:ranks])
            for host in leaving:  # what they keep stays on their nodes
                self.room.end(host)

    def has_lost_nodes(self) -> bool:
        """Say whether a node that is gone has taken states along, as far as Ray knows by now."""
        return self.copies.has_lost(self._kept_by)

    def copied(self, number: int) -> StateOrigin | None:
        """Return the newest state up to ``number`` calls that all ranks have, on their nodes or in copies.

        None where no node is lost, or there is no such state.
        """
        found = self.copies.newest(self._kept_by, self._saved_layout, number)
        return None if found is None else StateOrigin(*found)

    def join(self, origin: StateOrigin) -> Ended:
        """Let all ranks begin a new generation, in the state that ``origin`` says; say what became of it."""
        if not self._ranks:
            self.fill()
        self.generation += 1
        layout, policy = self._layout(anew=origin.disk is not None), self._policy
        orders = [
            JoinOrder(
                gang=self.gang,
                rank=rank,
                size=len(self._ranks),
                generation=self.generation,
                backend=self._wanted.backend,
                exact=policy.exact,
                layout=layout,
                from_layout=self._saved_layout,
                number=origin.number if self._kept_by or origin.disk else None,
                kept_by=self._kept_by,
                copies=origin.copies,
                meet_s=policy.setup_s,
                disk=origin.disk,
                checkpoint="" if policy.checkpoint is None else os.path.abspath(policy.checkpoint),  # noqa: PTH100 - of a node's file system
                checkpoint_every=policy.checkpoint_every,
            )
            for rank in range(len(self._ranks))
        ]
        ended = RankWatch(self.orders, self.room, self._ranks).wait(
            [host.actor.join.remote(order) for host, order in zip(self._ranks, orders, strict=True)],
            generation=self.generation,
            suspicious_s=policy.setup_s,
            over_s=policy.setup_s,
            leave_s=policy.leave_s,
        )
        if ended.verdict.ok:
            self._kept_by = tuple(host.node for host in self._ranks)
            self._saved_layout, self.size = layout, len(self._ranks)
            self.copies.begun(self._kept_by, layout, self.generation, origin.number)
            with harmless("gang"):
                for old in range(max(0, self._joined), self.generation):
                    self.orders.forget_generation(old)
            self._joined = self.generation
            if not self.generation:  # later, once the call is made: a spare that starts takes cores from it
                self.top_up()
        return ended

    def top_up(self) -> None:
        """Begin to start spare actors where there are fewer than asked for; waits for none."""
        for bundle in self.room.bundles_free()[: max(0, self._wanted.spares - self.spares)]:
            self.room.start(bundle)

    def _layout(self, *, anew: bool) -> int:
        """Return the number under which ranks are to keep their state: a new one where it is shared anew."""
        if len(self._kept_by) in (0, len(self._ranks)) and not anew:
            return self._saved_layout
        self._tried_layout = max(self._tried_layout, self._saved_layout) + 1
        return self._tried_layout

    def _seat(self, hosts: Sequence[GangHost]) -> None:
        self._ranks = list(hosts)
        for host in self.room.alive:
            host.rank = None
        for rank, host in enumerate(self._ranks):
            host.rank = rank

    def _spare(self) -> list[GangHost]:
        return [host for host in self.room.alive if host.rank is None]

    def _found(self, count: int) -> list[GangHost]:
        """Return so many actors that hold no rank, as far as there are: those that wait first."""
        found, until = self.room.greeted(self._spare())[:count], self.room.deadline()
        for attempt in range(_STARTS):
            coming = [host for host in self._spare() if host not in found][: count - len(found)]
            new = self.room.bundles_free()[: count - len(found) - len(coming)]
            if not (coming or new) or (attempt and time.monotonic() > until):
                break
            found += self.room.ready([*coming, *map(self.room.start, new)], until)
        return found

    def _last_error(self) -> str:
        error = self.room.last_error
        return "" if error is None else f": {str(error).strip().splitlines()[-1].strip()}"


_STARTS = 3  # what starts on a node that is lost, and not known to be, ends when that is known
_NO_ROOM = "see `ray status` for what is free; GangPolicy(min_ranks=...) lets a gang go on with fewer ranks"
