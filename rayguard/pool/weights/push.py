"""A pool's weights, pushed to all engines: no engine gets a request unless its weights are current enough.

Loading and proving them inside an actor is ``rayguard.engine.weights``; who may serve is decided by ``gate``;
engines that others contradict are ``canary_vote``.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

from rayguard.errors import WeightsError
from rayguard.faults.diagnosis import Kind
from rayguard.harmless import harmless
from rayguard.metrics.instruments.pool_tally import Push
from rayguard.pool.actors.connection import POLL_S, ActorConnection, kind_of
from rayguard.pool.weights import canary_vote
from rayguard.pool.weights.canary_vote import Contradictions
from rayguard.pool.weights.gate import WeightGate
from rayguard.pool.weights.own_pushes import OwnPushes

if TYPE_CHECKING:
    from rayguard.engine.weights.proof import Doubt
    from rayguard.pool.fleet import Fleet
    from rayguard.pool.ports import ActorProvider, PoolPort

_log = logging.getLogger("rayguard")
_ROUNDS = 3  # the source may move on while engines load


class WeightVersions:
    """The weights of a pool's engines, and who serves with them. Every method on the pool's loop.

    Invariant: a new request goes to an engine only if the gate lets it serve, it is to stay, and it is not
    between two lives.
    """

    def __init__(self, pool: PoolPort, fleet: Fleet, provider: ActorProvider, max_lag: int) -> None:
        self.gate = WeightGate(max_lag)
        self.of = self.gate.of
        self.mixes = self.gate.mixes
        self._pool = pool
        self._fleet = fleet
        self._provider = provider
        self._updating = asyncio.Lock()
        self.own_pushes = OwnPushes(pool, fleet, self._admit)
        self._contradictions = Contradictions(pool, fleet, provider, self.gate, self._one, self._admit)

    @property
    def current(self) -> str:
        """The version that the pool serves."""
        return self.gate.current

    def joined(self, name: str, version: str) -> None:
        """A life of an actor begins, with these weights."""
        self.gate.joined(name, version)
        self._admit(name)
        if not self.gate.allowed(version):
            self._pool.spawn(self._heal(name))

    def seen(self, name: str, version: str) -> None:
        """An engine reports its version."""
        if self.gate.reported(name, version):
            self._admit(name)

    def _admit(self, name: str) -> None:
        """Let an engine be given requests, or no more of them."""
        stays = bool(self._fleet.session(name)) and name not in self._fleet.draining
        may = self.gate.may_serve(name) and self.own_pushes.may_serve(name)
        is_open = stays and may  # a life may end while its push is under way
        self._pool.book.set_open(name, is_open=is_open)
        if is_open:
            self._pool.pump()

    async def update(self, deadline_s: float) -> str:
        """Bring all engines to the source's current version and return it.

        With ``max_weight_lag=0`` what is running is finished first, by the weights that it began with; else
        it goes on and its samples tell which weights made which tokens. Engines that miss the update are
        given no requests until they have it.

        Raises:
            WeightsError: No engine has new weights. Where the source failed, or its weights were refused
                before an engine was touched, all go on with what they have. Where no engine makes numbers of
                them, none serves until the source offers others: requests end with this error. An engine
                that a failed push left half loaded is rebuilt, with what the source has then.
        """
        began = time.monotonic()
        until = began + deadline_s
        async with self._updating:
            self._pool.book.hold = self.gate.max_lag == 0
            try:
                await self._finish_running(until)
                newest = await self._push(until)
                await self._contradictions.compare()
            finally:
                self._pool.book.hold = False
                for name in self._fleet.connections:
                    self._admit(name)
                self._pool.pump()
        self._pool.tally.updated(time.monotonic() - began)
        return newest

    async def _finish_running(self, until: float) -> None:
        book = self._pool.book
        if not await self._pool.wait_until(lambda: not book.hold or not (book.running or book.begun), until):
            raise WeightsError(
                f"{book.running} requests still run with weights {self.current!r} and max_weight_lag is 0: "
                "wait for them first, allow a lag, or give the update more time"
            )

    async def _push(self, until: float) -> str:
        newest, errors, dead = "", {}, set[str]()
        for _ in range(_ROUNDS):
            if not newest:
                await self._somebody(dead, until)
            behind = [
                c for c in self._fleet.connections.values() if c.session and self.gate.of(c.name) != newest
            ]
            lives = {c.name: c.session for c in behind}
            answers = await asyncio.gather(*(self._one(c, until) for c in behind))
            results = dict(zip(lives, answers, strict=True))
            errors = {name: e for name, e in results.items() if isinstance(e, Exception)}
            dead.update(lives[name] for name, e in errors.items() if kind_of(e) is not Kind.UNKNOWN)
            versions = [version for version in answers if isinstance(version, str)]
            newest = versions[-1] if versions else newest
            if newest and set(versions) <= {newest}:
                break
        if not newest:
            raise _no_engine(errors)
        self.gate.pushed(newest)
        for name in errors:
            self._pool.spawn(self._heal(name))
        return newest

    async def _somebody(self, dead: set[str], until: float) -> None:
        """Wait for a life to push to; a while for another one than these, as a push may see a death first."""

        def somebody(but: set[str]) -> bool:
            lives = {connection.session for connection in self._fleet.connections.values()}
            return self._fleet.nobody or bool(lives - but - {""})

        await self._pool.wait_until(lambda: somebody(dead), min(until, time.monotonic() + POLL_S))
        await self._pool.wait_until(lambda: somebody(set()), until)

    async def _one(
        self, connection: ActorConnection, until: float, doubt: Doubt | None = None
    ) -> str | Exception:
        """Push to one engine and return its version; a failure is returned."""
        name = connection.name
        before = self.gate.pushing(name)
        try:
            result = await self._pushed(connection, until, doubt)
        finally:  # it waits to be compared, but not for those that take much longer than itself
            asyncio.get_running_loop().call_later(canary_vote.COMPARE_S, self._wait_no_more, name, before)
        self._pool.tally.pushes[(Push.TAKEN if isinstance(result, str) else Push.FAILED).value] += 1
        if isinstance(result, str):
            self.gate.taken(name, result)
            self._admit(name)
        return result

    def _wait_no_more(self, name: str, before: str) -> None:
        if self.gate.wait_no_more(name, before) and name in self._fleet.connections:
            self._admit(name)

    async def _pushed(
        self, connection: ActorConnection, until: float, doubt: Doubt | None
    ) -> str | Exception:
        left_s = max(0.1, until - time.monotonic())
        try:
            pushing = connection.actor.update_weights(connection.session, doubt)
            return await asyncio.wait_for(pushing, left_s)
        except (TimeoutError, asyncio.TimeoutError):  # two types before Python 3.11
            return WeightsError(f"{connection.name} did not take weights in {left_s:.0f} s")
        except Exception as error:  # noqa: BLE001 - whatever the actor or Ray raises
            return error

    async def _heal(self, name: str) -> None:
        """Bring an engine that missed an update to it; one that cannot be brought is begun anew."""
        _log.warning(
            "rayguard: %s missed weights %r; it gets no requests until it has them", name, self.gate.current
        )
        for attempt in range(_ROUNDS):
            connection = self._fleet.connections.get(name)
            if connection is None or not connection.session or self.gate.allowed(self.of(name)):
                return
            result = await self._one(connection, time.monotonic() + 30.0 * (attempt + 1))
            if isinstance(result, str):
                await self._contradictions.compare()
        if not self.gate.allowed(self.of(name)):
            with harmless("pool"):
                self._provider.restart(name)


def _no_engine(errors: dict[str, Exception]) -> WeightsError:
    for error in errors.values():
        if isinstance(error, WeightsError):
            return error
    causes = "; ".join(f"{name}: {type(error).__name__}: {error}" for name, error in errors.items())
    return WeightsError(f"no engine took the new weights ({causes or 'none is running'})")
