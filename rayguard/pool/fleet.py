"""Who works for a pool: hired, hired anew in the place of those that are dead for good, dismissed.

Which requests they have is ``core``'s; whether another one may be hired is ``replacement``'s decision.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

from rayguard.errors import GaveUpError, RayguardError, RecoveryTimeoutError
from rayguard.metrics.instruments.pool_tally import DRAINED, Hire
from rayguard.pool.actors.connection import ActorConnection
from rayguard.pool.replacement import Enough, decide, names_of, said

if TYPE_CHECKING:
    from rayguard.pool.ports import ActorProvider, PoolPort
    from rayguard.pool.values.policy import PoolPolicy

Place = tuple[float, ...]  # of an engine that a pool is to have: when it was filled anew
_log = logging.getLogger("rayguard")
_RELIEF_S = 30.0  # for an actor whose memory runs out: what it has not done by then goes on elsewhere
_DISMISSED = "it was dismissed before another life served in its place"
_ADVICE = "read `rayguard incidents` and the actors' logs; then make the pool anew"


class Fleet:
    """The actors of one pool. Every method on its loop.

    Invariant: each engine that the pool is to have has one place, held by an actor or waiting for the next
    one; an actor that will go has none.
    """

    def __init__(self, pool: PoolPort, provider: ActorProvider, policy: PoolPolicy) -> None:
        self.connections: dict[str, ActorConnection] = {}
        self.draining: set[str] = set()
        self.causes: dict[str, str] = {}
        self.proven = False  # an engine has served here
        self.lost = 0  # places that were given up
        self._pool = pool
        self._provider = provider
        self._budget = policy.replace
        self._hello_s = policy.start_s
        self._drain_s = min(policy.drain_s, _RELIEF_S)
        self._places: dict[str, Place] = {}
        self._awaited: dict[str, asyncio.TimerHandle] = {}
        self._kept: set[str] = set()  # asked to be replaced, and were not
        self._hired = 0
        self._last: tuple[str, BaseException] | None = None

    @property
    def size(self) -> int:
        """Engines that are there to stay, or will be."""
        return len(self._places) + len(self._awaited)

    @property
    def replacing(self) -> int:
        """Places that wait for the next actor to be hired."""
        return len(self._awaited)

    @property
    def nobody(self) -> bool:
        """Say whether no actor is there, and none will come."""
        return not self.connections and not self._awaited

    def session(self, name: str) -> str:
        """The present life of an actor, empty while there is none."""
        connection = self.connections.get(name)
        return "" if connection is None else connection.session

    # -- hired

    def hire(self, count: int, why: Hire) -> list[str]:
        """Add actors."""
        return [self._hire((), why) for _ in range(count)]

    def succeed(self, name: str) -> str:
        """Hire another actor in the place of ``name``, which will go."""
        other = self._hire(self._places.pop(name, ()), Hire.DRAIN)
        self._pool.losses.hired(name, other)
        return other

    def _hire(self, place: Place, why: Hire) -> str:
        name = f"rollout-{self._hired}"
        self._hired += 1
        connection = ActorConnection(name, self._provider.hire(name), self._pool, hello_s=self._hello_s)
        self.connections[name], self._places[name] = connection, place
        self._pool.tally.hires[why.value] += 1
        self._pool.spawn(connection.run())
        return name

    # -- hired anew

    def ended(self, name: str, error: BaseException) -> None:
        """An actor comes back no more: hire another one, if that may help."""
        self.causes[name] = said(error)
        _log.error("rayguard: %s ended for good: %s", name, error)
        self.connections.pop(name, None)
        self._provider.dismiss(name)  # one that only gave up lives, and holds what another one needs
        self._pool.remove(name, DRAINED)
        place = self._places.pop(name, None)
        if place is not None and self._pool.final is None:
            self._fill(name, place, error)
        self._end_without_anybody(name, error)

    def _fill(self, gone: str, place: Place, error: BaseException) -> None:
        """Have the place of ``gone`` filled, or give it up."""
        verdict = decide(place, names_of(error), self._budget, time.monotonic(), proven=self.proven)
        if isinstance(verdict, Enough):
            self.lost += 1
            self._last = (gone, error)
            self.causes[gone] += f"; it is not replaced: {verdict.why}"
            self._pool.losses.given_up(gone, f"it is not replaced: {verdict.why}", failed=True)
            left = f"the pool has {self.size} engines left; resize(...) hires anew"
            _log.error("rayguard: %s is not replaced: %s; %s", gone, verdict.why, left)
            return
        loop = asyncio.get_running_loop()
        self._awaited[gone] = loop.call_later(verdict.after_s, self._refill, gone, place)
        if verdict.after_s:
            _log.warning("rayguard: %s is replaced in %.0f s", gone, verdict.after_s)

    def _refill(self, gone: str, place: Place) -> None:
        del self._awaited[gone]
        now = time.monotonic()
        filled = (*self._budget.recent(place, now), now)
        try:
            name = self._hire(filled, Hire.REPLACEMENT)
        except Exception as error:  # noqa: BLE001 - whatever Ray raises when it cannot make an actor
            self.causes[gone] = said(error)
            self._fill(gone, filled, error)
            self._end_without_anybody(gone, error)
            return
        self.causes[name] = self.causes.pop(gone, "")
        self._pool.losses.hired(gone, name)
        _log.warning(
            "rayguard: %s is hired in the place of %s (replacement %d of at most %d within %.0f s)",
            name,
            gone,
            len(filled),
            self._budget.max_restarts,
            self._budget.within_s,
        )

    def _end_without_anybody(self, name: str, error: BaseException) -> None:
        if not self.nobody or self._pool.final is not None:
            return
        hired = self._pool.tally.hires[Hire.REPLACEMENT.value]
        tried = (f"{hired} other actors",) if hired else ()
        if isinstance(error, GaveUpError):
            final = GaveUpError(self._provider.target, error.cause, (*error.tried, *tried), error.advice)
        else:
            cause = f"no rollout actor is left; the last one, {name}, ended with {self.causes[name]}"
            final = GaveUpError(self._provider.target, cause, tried, _ADVICE)
        _log.error("rayguard: %s", final)
        self._pool.give_up(final)

    async def wait_ready(self, count: int | None, limit_s: float) -> int:
        """Wait until ``count`` engines serve (None: all that are to be there); return how many do.

        Raises:
            RecoveryTimeoutError: They could not in time.
            GaveUpError: None is left.
        """
        book = self._pool.book

        def wanted() -> int:
            return self.size if count is None else count

        def ready() -> bool:
            return book.serving >= wanted() or self.nobody

        if not await self._pool.wait_until(ready, time.monotonic() + limit_s):
            raise RecoveryTimeoutError(f"{book.serving} of {wanted()} engines serve after {limit_s:.0f} s")
        self.raise_if_given_up()
        return book.serving

    def raise_if_given_up(self) -> None:
        """Raise what callers get when no engine is left."""
        if self._pool.final is not None:
            raise self._pool.final

    # -- dismissed

    async def resize(self, count: int, drain_s: float) -> None:
        """Hire or dismiss until ``count`` actors are there; those with least to do go.

        Raises:
            GaveUpError: None is left, and none will come.
        """
        self.raise_if_given_up()
        self.lost = 0
        self.hire(count - self.size, Hire.RESIZE)
        for gone in list(self._awaited)[: max(0, self.size - count)]:
            self._awaited.pop(gone).cancel()
            self._pool.losses.given_up(gone, _DISMISSED)
        slots = self._pool.book.slots
        by_load = sorted(self._places, key=lambda n: len(slots[n].running) if n in slots else -1)
        going = by_load[: max(0, self.size - count)]
        await asyncio.gather(*(self.dismiss(name, drain_s) for name in going))

    async def dismiss(self, name: str, drain_s: float) -> None:
        """Let an actor finish what it has, for at most ``drain_s``, and end it; the rest goes elsewhere."""
        connection = self.connections.get(name)
        if connection is None:
            return
        self._places.pop(name, None)
        self._pool.losses.given_up(name, _DISMISSED)
        self.draining.add(name)
        book = self._pool.book
        book.set_open(name, is_open=False)
        slot = book.slots.get(name)
        until = time.monotonic() + drain_s
        await self._pool.wait_until(lambda: slot is None or not slot.running, until)
        connection.close()
        self.draining.discard(name)
        self._pool.remove(name, DRAINED)
        self.connections.pop(name, None)
        self._provider.dismiss(name)
        if self.lost and self._last is not None:
            self._end_without_anybody(*self._last)

    async def relieve(self, name: str, why: str) -> None:
        """Replace an actor that asks for it, unless that would leave nobody who serves: it asks again.

        It goes before the next one comes: its memory is short.
        """
        place, error = self._places.get(name), RayguardError(why)
        if place is None or self.draining or self._awaited or not self._can_spare(name):
            return
        verdict = decide(place, names_of(error), self._budget, time.monotonic(), proven=self.proven)
        if isinstance(verdict, Enough):  # one that is short is better than none
            if name not in self._kept:
                _log.error("rayguard: %s asks to be replaced (%s) and is not: %s", name, why, verdict.why)
            self._kept.add(name)
            return
        _log.warning("rayguard: %s is replaced, as it asks: %s", name, why)
        self.causes[name] = why
        self._awaited[name] = asyncio.get_running_loop().call_later(self._drain_s * 2, lambda: None)
        await self.dismiss(name, self._drain_s)
        if self._awaited.pop(name, None) is not None and self._pool.final is None:
            self._fill(name, place, error)

    def _can_spare(self, name: str) -> bool:
        slots = self._pool.book.slots
        return self.size == 1 or any(slot.open for other, slot in slots.items() if other != name)

    def close(self) -> None:
        """End all."""
        for timer in self._awaited.values():
            timer.cancel()
        self._awaited.clear()
        self._places.clear()
        for name, connection in list(self.connections.items()):
            connection.close()
            self._provider.dismiss(name)
        self.connections.clear()
