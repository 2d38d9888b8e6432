"""Weight versions across a pool: no engine gets a request unless its weights are current enough.

Loading and proving them inside an actor is ``rayguard.engine.weights``; comparing engines is ``peers``; this
decides who may serve.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

from rayguard.actors.pool import peers
from rayguard.actors.pool.connection import POLL_S, kind_of
from rayguard.errors import ConfigError, WeightsError
from rayguard.faults.diagnosis import Kind
from rayguard.metrics.pool_tally import Push
from rayguard.recovery.harmless import harmless

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from rayguard.actors.pool.connection import Connection
    from rayguard.actors.pool.core import PoolCore
    from rayguard.engine.weights.current import Doubt

_log = logging.getLogger("rayguard")
_ROUNDS = 3  # the source may move on while engines load
_HISTORY = 64
_AGAIN_S = 180.0  # for an engine that others contradict, to be loaded again and rebuilt


class Versions:
    """Which version each engine has, and how old the oldest may be that serves.

    Invariant: a new request goes to an engine only if its version is ``current``, one of the ``max_lag``
    before it, or newer than any that this pool has seen (an actor that restarted has what is current now);
    not before it was compared with others that took it (or that took too long), nor while it is in doubt, nor
    between two lives of it.
    """

    def __init__(self, max_lag: int, restart: Callable[[str], None]) -> None:
        if max_lag < 0:
            raise ConfigError(f"max_weight_lag must be 0 or more, got {max_lag}")
        self.current = ""
        self._max_lag = max_lag
        self._restart = restart
        self._history: list[str] = []
        self._of: dict[str, str] = {}
        self._updating = asyncio.Lock()
        self._had: dict[str, str] = {}  # by engines that take others now, until those are compared
        self._doubted: dict[str, str] = {}  # the version with which others contradict an engine
        self._undecided: frozenset[str] = frozenset()  # lives that were loaded again, and nobody knows better

    def bind(self, core: PoolCore) -> None:
        """Remember whose engines these are."""
        self._core = core

    def of(self, name: str) -> str:
        """Return the version that an engine reported last."""
        return self._of.get(name, "")

    def joined(self, name: str, version: str) -> None:
        """A life of an actor begins, with these weights."""
        self._of[name] = version
        self._had.pop(name, None)
        self._doubted.pop(name, None)
        self._know(version)
        self._gate(name)
        if not self._allowed(version):
            self._core.spawn(self._heal(name))

    def _know(self, version: str) -> None:
        """Put a version that was never seen behind those that were: it can only be newer."""
        if version and version not in self._history:
            self._history = [*self._history, version][-_HISTORY:]
        self.current = self.current or version

    def seen(self, name: str, version: str) -> None:
        """An engine reports its version; an old report that comes late changes nothing."""
        known = self._of.get(name, "")
        if version != known and not self._older(version, known):
            self._of[name] = version
            self._know(version)
            self._gate(name)

    def _older(self, version: str, than: str) -> bool:
        if version not in self._history or than not in self._history:
            return False
        return self._history.index(version) < self._history.index(than)

    def _allowed(self, version: str) -> bool:
        if version not in self._history or self.current not in self._history:
            return bool(version) or not self.current
        return self._history.index(version) >= self._history.index(self.current) - self._max_lag

    def mixes(self, name: str, made_by: Iterable[str]) -> bool:
        """Say whether ``name`` would go on from tokens of other weights than its own, and may not."""
        here = self.of(name)
        return self._max_lag == 0 and bool(here) and not {here}.issuperset(made_by)

    def _gate(self, name: str) -> None:
        version = self._of.get(name, "")
        allowed = self._allowed(version) and name not in self._core.draining
        allowed = allowed and self._had.get(name, version) == version != self._doubted.get(name)
        allowed = allowed and bool(self._session(name))  # a life may end while its push is under way
        self._core.book.set_open(name, is_open=allowed)
        if allowed:
            self._core.pump()

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
            self._core.book.hold = self._max_lag == 0
            try:
                await self._finish_running(until)
                newest = await self._push(until)
                await self._compare()
            finally:
                self._core.book.hold = False
                for name in self._core.connections:
                    self._gate(name)
                self._core.pump()
        self._core.tally.updated(time.monotonic() - began)
        return newest

    async def _finish_running(self, until: float) -> None:
        book = self._core.book
        if not await self._core.wait_until(lambda: not book.hold or not (book.running or book.begun), until):
            raise WeightsError(
                f"{book.running} requests still run with weights {self.current!r} and max_weight_lag is 0: "
                "wait for them first, allow a lag, or give the update more time"
            )

    async def _push(self, until: float) -> str:
        newest, errors, dead = "", {}, set[str]()
        for _ in range(_ROUNDS):
            if not newest:
                await self._somebody(dead, until)
            behind = [c for c in self._core.connections.values() if c.session and self._of[c.name] != newest]
            lives = {c.name: c.session for c in behind}
            results = await asyncio.gather(*(self._one(c, until) for c in behind))
            errors = {name: e for name, e in results if isinstance(e, Exception)}
            dead.update(lives[name] for name, e in errors.items() if kind_of(e) is not Kind.UNKNOWN)
            versions = {name: v for name, v in results if isinstance(v, str)}
            newest = list(versions.values())[-1] if versions else newest
            if newest and all(version == newest for version in versions.values()):
                break
        if not newest:
            raise _no_engine(errors)
        self._know(newest)
        self.current = newest
        for name in errors:
            self._core.spawn(self._heal(name))
        return newest

    async def _somebody(self, dead: set[str], until: float) -> None:
        """Wait for a life to push to; a while for another one than these, as a push may see a death first."""

        def somebody(but: set[str]) -> bool:
            lives = {connection.session for connection in self._core.connections.values()}
            return self._core.crew.nobody or bool(lives - but - {""})

        await self._core.wait_until(lambda: somebody(dead), min(until, time.monotonic() + POLL_S))
        await self._core.wait_until(lambda: somebody(set()), until)

    async def _one(
        self, connection: Connection, until: float, doubt: Doubt | None = None
    ) -> tuple[str, str | Exception]:
        """Push to one engine; a failure is returned."""
        name = connection.name
        self._had[name] = had = self.of(name)
        try:
            result = await self._pushed(connection, until, doubt)
        finally:  # it waits to be compared, but not for those that take much longer than itself
            asyncio.get_running_loop().call_later(peers.COMPARE_S, self._waits_no_more, name, had)
        self._core.tally.pushes[(Push.TAKEN if isinstance(result, str) else Push.FAILED).value] += 1
        if isinstance(result, str):
            self._of[name] = result
            self._gate(name)
        return name, result

    def _waits_no_more(self, name: str, had: str) -> None:
        if self._had.get(name) == had:
            del self._had[name]
            if name in self._core.connections:
                self._gate(name)

    async def _pushed(self, connection: Connection, until: float, doubt: Doubt | None) -> str | Exception:
        left_s = max(0.1, until - time.monotonic())
        try:
            pushing = connection.member.update_weights(connection.session, doubt)
            return await asyncio.wait_for(pushing, left_s)
        except (TimeoutError, asyncio.TimeoutError):  # two types before Python 3.11
            return WeightsError(f"{connection.name} did not take weights in {left_s:.0f} s")
        except Exception as error:  # noqa: BLE001 - whatever the actor or Ray raises
            return error

    async def _heal(self, name: str) -> None:
        """Bring an engine that missed an update to it; one that cannot be brought is begun anew."""
        _log.warning(
            "rayguard: %s missed weights %r; it gets no requests until it has them", name, self.current
        )
        for attempt in range(_ROUNDS):
            connection = self._core.connections.get(name)
            if connection is None or not connection.session or self._allowed(self.of(name)):
                return
            _, result = await self._one(connection, time.monotonic() + 30.0 * (attempt + 1))
            if isinstance(result, str):
                await self._compare()
        if not self._allowed(self.of(name)):
            with harmless("pool"):
                self._restart(name)

    # -- compared with each other

    async def _compare(self) -> None:
        """Fence the engines that others contradict with the same weights, and begin to see to them."""
        version = self.current
        with harmless("canary"):
            found = {
                name: doubt
                for name, doubt in (await self._doubts(version)).items()
                if self._doubted.get(name) != version  # they are seen to
                and (doubt.answer is not None or self._session(name) not in self._undecided)
            }
            self._doubted.update(dict.fromkeys(found, version))
            if found:
                _log.warning(
                    "rayguard: %s: other engines answer otherwise with weights %r; first it is loaded again",
                    ", ".join(found),
                    version,
                )
                self._core.spawn(self._settle(version, found))
        for name in self._core.connections:
            if self.of(name) == version != self._had.get(name):  # else it takes another one already
                self._had.pop(name, None)
                self._gate(name)

    async def _doubts(self, version: str) -> dict[str, Doubt]:
        connections = self._core.connections.values()
        return await peers.compared(
            [c for c in connections if c.session and self.of(c.name) == version], version
        )

    def _session(self, name: str) -> str:
        connection = self._core.connections.get(name)
        return "" if connection is None else connection.session

    async def _settle(self, version: str, doubted: dict[str, Doubt]) -> None:
        """Load those engines once more; one that most still contradict is replaced. Once for each push."""
        restarting: set[str] = set()
        try:
            loaded = await asyncio.gather(*(self._again(name, doubt) for name, doubt in doubted.items()))
            restarting = {name for name, done in zip(doubted, loaded, strict=True) if not done}
            still = {n: d for n, d in (await self._doubts(version)).items() if n in doubted}
            undecided = {name for name, doubt in still.items() if doubt.answer is None}
            self._undecided = frozenset(map(self._session, undecided))
            target = self._core.staff.target
            if undecided:
                await asyncio.to_thread(peers.tell_undecided, target, undecided, version)
            for name in still.keys() - undecided:
                why = await asyncio.to_thread(peers.told_replaced, target, name, version)
                connection = self._core.connections.get(name)
                if connection is not None and name not in self._core.draining:
                    connection.close()
                    self._core.ended(name, WeightsError(why))
        finally:
            for name in doubted.keys() - restarting:
                if self._doubted.get(name) == version:
                    del self._doubted[name]
                if name in self._core.connections:
                    self._gate(name)

    async def _again(self, name: str, doubt: Doubt) -> bool:
        """Load one once more; False where it cannot be and its next life is awaited."""
        connection = self._core.connections.get(name)
        session = self._session(name)
        if connection is None or not session:
            return True
        _, result = await self._one(connection, time.monotonic() + _AGAIN_S, doubt)
        if (
            not isinstance(result, str) and self._session(name) == session
        ):  # else its next life has begun already
            _log.warning("rayguard: %s could not be loaded again (%s); it begins anew", name, result)
            with harmless("pool"):
                self._restart(name)
            return False
        return True


def _no_engine(errors: dict[str, Exception]) -> WeightsError:
    for error in errors.values():
        if isinstance(error, WeightsError):
            return error
    said = "; ".join(f"{name}: {type(error).__name__}: {error}" for name, error in errors.items())
    return WeightsError(f"no engine took the new weights ({said or 'none is running'})")
