"""Weight versions across a pool: no engine gets a request unless its weights are current enough.

Loading and proving them inside an actor is ``rayguard.engine.weights``; this decides who may serve.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

from rayguard.errors import ConfigError, WeightsError
from rayguard.metrics.pool_tally import Push
from rayguard.recovery.harmless import harmless

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from rayguard.actors.pool.connection import Connection
    from rayguard.actors.pool.core import PoolCore

_log = logging.getLogger("rayguard")
_ROUNDS = 3  # the source may move on while engines load
_HISTORY = 64


class Versions:
    """Which version each engine has, and how old the oldest may be that serves.

    Invariant: a new request goes to an engine only if its version is ``current``, one of the ``max_lag``
    before it, or newer than any that this pool has seen (an actor that restarted has what is current now).
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

    def bind(self, core: PoolCore) -> None:
        """Remember whose engines these are."""
        self._core = core

    def of(self, name: str) -> str:
        """Return the version that an engine reported last."""
        return self._of.get(name, "")

    def joined(self, name: str, version: str) -> None:
        """A life of an actor begins, with these weights."""
        self._of[name] = version
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
        allowed = self._allowed(self._of.get(name, "")) and name not in self._core.draining
        self._core.book.set_open(name, is_open=allowed)
        if allowed:
            self._core.pump()

    async def update(self, deadline_s: float) -> str:
        """Bring all engines to the source's current version and return it.

        With ``max_weight_lag=0`` what is running is finished first, by the weights that it began with; else
        it goes on and its samples tell which weights made which tokens. Engines that miss the update are
        given no requests until they have it.

        Raises:
            WeightsError: No engine has new weights: the source failed, they are unfit, or nothing could be
                reached in time. The engines go on with what they have.
        """
        began = time.monotonic()
        until = began + deadline_s
        async with self._updating:
            self._core.book.hold = self._max_lag == 0
            try:
                await self._finish_running(until)
                newest = await self._push(until)
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
        connections = self._core.connections
        await self._core.wait_until(
            lambda: self._core.crew.nobody or any(c.session for c in connections.values()), until
        )
        newest, errors = "", {}
        for _ in range(_ROUNDS):
            behind = [c for c in self._core.connections.values() if c.session and self._of[c.name] != newest]
            results = await asyncio.gather(*(self._one(c, until) for c in behind))
            errors = {name: e for name, e in results if isinstance(e, Exception)}
            versions = {name: v for name, v in results if isinstance(v, str)}
            self._of.update(versions)
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

    async def _one(self, connection: Connection, until: float) -> tuple[str, str | Exception]:
        """Push to one engine; a failure is returned."""
        result = await self._pushed(connection, until)
        self._core.tally.pushes[(Push.TAKEN if isinstance(result, str) else Push.FAILED).value] += 1
        return connection.name, result

    async def _pushed(self, connection: Connection, until: float) -> str | Exception:
        left_s = max(0.1, until - time.monotonic())
        try:
            pushing = connection.member.update_weights(connection.session)
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
                self._of[name] = result
                self._gate(name)
        if not self._allowed(self.of(name)):
            with harmless("pool"):
                self._restart(name)


def _no_engine(errors: dict[str, Exception]) -> WeightsError:
    for error in errors.values():
        if isinstance(error, WeightsError):
            return error
    said = "; ".join(f"{name}: {type(error).__name__}: {error}" for name, error in errors.items())
    return WeightsError(f"no engine took the new weights ({said or 'none is running'})")
