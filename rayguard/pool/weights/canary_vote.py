"""Engines compared by what they answer with the same weights, and what becomes of those that differ.

Each engine proves a push by itself (``rayguard.engine.weights.canaries``); damage that was there from the
first answer on is seen only beside others. Whom they contradict is kept from requests, loaded once more, then
replaced. What answers mean is ``rayguard.engine.weights.canary``; who may serve meanwhile is ``gate``.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rayguard.engine.context import Surroundings
from rayguard.engine.weights.canaries import REPLACED, UNDECIDED, tell
from rayguard.engine.weights.canary import outvoted
from rayguard.engine.weights.proof import Doubt, Proof
from rayguard.errors import WeightsError
from rayguard.faults.diagnosis import Kind, Scope
from rayguard.harmless import harmless

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Mapping

    from rayguard.pool.actors.connection import ActorConnection
    from rayguard.pool.fleet import Fleet
    from rayguard.pool.ports import ActorProvider, PoolPort
    from rayguard.pool.weights.gate import WeightGate

_log = logging.getLogger("rayguard")
_AGAIN_S = 180.0  # for an engine that others contradict, to be loaded again and rebuilt
COMPARE_S = 5.0  # for what every engine knows already; who is late is not compared


@dataclass(slots=True)
class Contradictions:
    """Compares a pool's engines after a push, and sees to those that differ."""

    pool: PoolPort
    fleet: Fleet
    provider: ActorProvider
    gate: WeightGate
    load: Callable[[ActorConnection, float, Doubt], Awaitable[str | Exception]]  # until then, with this doubt
    admit: Callable[[str], None]  # opens or closes an engine, as the gate says
    _undecided: frozenset[str] = frozenset()  # lives that were loaded again, and nobody knows better

    async def compare(self) -> None:
        """Fence the engines that others contradict with the same weights, and begin to see to them."""
        version = self.gate.current
        with harmless("canary"):
            found = {
                name: doubt
                for name, doubt in (await self._doubts(version)).items()
                if not self.gate.is_doubted(name, version)  # they are seen to
                and (doubt.answer is not None or self.fleet.session(name) not in self._undecided)
            }
            self.gate.doubt(found, version)
            if found:
                _log.warning(
                    "rayguard: %s: other engines answer otherwise with weights %r; first it is loaded again",
                    ", ".join(found),
                    version,
                )
                self.pool.spawn(self._settle(version, found))
        for name in self.fleet.connections:
            if self.gate.compared(name, version):
                self.admit(name)

    async def _doubts(self, version: str) -> dict[str, Doubt]:
        connections = self.fleet.connections.values()
        return await _compared(
            [c for c in connections if c.session and self.gate.of(c.name) == version], version
        )

    async def _settle(self, version: str, doubted: dict[str, Doubt]) -> None:
        """Load those engines once more; one that most still contradict is replaced. Once for each push."""
        restarting: set[str] = set()
        try:
            loaded = await asyncio.gather(*(self._again(name, doubt) for name, doubt in doubted.items()))
            restarting = {name for name, done in zip(doubted, loaded, strict=True) if not done}
            still = {n: d for n, d in (await self._doubts(version)).items() if n in doubted}
            undecided = {name for name, doubt in still.items() if doubt.answer is None}
            self._undecided = frozenset(map(self.fleet.session, undecided))
            if undecided:
                await asyncio.to_thread(_tell_undecided, self.provider.target, undecided, version)
            for name in still.keys() - undecided:
                await self._replace(name, version)
        finally:
            for name in doubted.keys() - restarting:
                self.gate.clear(name, version)
                if name in self.fleet.connections:
                    self.admit(name)

    async def _replace(self, name: str, version: str) -> None:
        why = await asyncio.to_thread(_tell_replaced, self.provider.target, name, version)
        connection = self.fleet.connections.get(name)
        if connection is not None and name not in self.fleet.draining:
            connection.close()
            self.pool.ended(name, WeightsError(why))

    async def _again(self, name: str, doubt: Doubt) -> bool:
        """Load one once more; False where it cannot be and its next life is awaited."""
        connection = self.fleet.connections.get(name)
        session = self.fleet.session(name)
        if connection is None or not session:
            return True
        result = await self.load(connection, time.monotonic() + _AGAIN_S, doubt)
        if isinstance(result, str) or self.fleet.session(name) != session:  # its next life has begun already
            return True
        _log.warning("rayguard: %s could not be loaded again (%s); it begins anew", name, result)
        with harmless("pool"):
            self.provider.restart(name)
        return False


async def _compared(connections: Collection[ActorConnection], version: str) -> dict[str, Doubt]:
    """Return which of these engines answer with ``version`` otherwise than others, by name.

    Who is dead, late, holds other weights or was not asked for a canary has no vote.
    """
    if len(connections) <= 1:
        return {}
    asked = (asyncio.wait_for(c.actor.proof(c.session), COMPARE_S) for c in connections)
    proofs = zip(connections, await asyncio.gather(*asked, return_exceptions=True), strict=True)
    known = {c.name: p for c, p in proofs if isinstance(p, Proof) and p.version == version}
    # Beside the loop: of a thousand engines that all differ, each is compared with each.
    return await asyncio.to_thread(doubts, known)


def doubts(proofs: Mapping[str, Proof]) -> dict[str, Doubt]:
    """Return whom others contradict that proved to have the same bytes; the widest tolerance counts."""
    found: dict[str, Doubt] = {}
    for digest in {proof.digest for proof in proofs.values()}:
        same = {name: proof for name, proof in proofs.items() if proof.digest == digest}
        answers = {name: proof.canary for name, proof in same.items() if proof.canary is not None}
        tolerance = max(proof.tolerance for proof in same.values())
        found.update({name: Doubt(digest, most) for name, most in outvoted(answers, tolerance).items()})
    return found


def _tell_replaced(target: str, name: str, version: str) -> str:
    """Tell that ``name`` is replaced, and return why. Blocks for milliseconds."""
    why = (
        f"{name} goes on answering otherwise than most other engines with weights {version!r}, "
        "also where it was loaded again and rebuilt"
    )
    tell(Surroundings(target=target), Kind.WEIGHT_SYNC_FAILED, Scope.ENGINE, why, REPLACED)
    return why


def _tell_undecided(target: str, names: Collection[str], version: str) -> None:
    """Tell that nobody knows who is right. Blocks for milliseconds."""
    cause = (
        f"{', '.join(sorted(names))} contradict each other with weights {version!r}, proved by their digest, "
        "also where each was loaded once more; no majority tells who is right"
    )
    tell(Surroundings(target=target), Kind.WEIGHT_SYNC_FAILED, Scope.JOB, cause, UNDECIDED)
