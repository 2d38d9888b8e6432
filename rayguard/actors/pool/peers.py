"""The engines of a pool compared by what they answer with the same weights, and what is told of that.

Each engine proves a push by itself (``rayguard.engine.weights.canaries``); damage that was there from the
first answer on is seen only beside others. What answers mean is ``rayguard.engine.weights.canary``; who is
fenced, loaded again or replaced is ``versions``.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from rayguard.engine.surroundings import Surroundings
from rayguard.engine.weights.canaries import REPLACED, UNDECIDED, tell
from rayguard.engine.weights.canary import outvoted
from rayguard.engine.weights.current import Doubt, Proof
from rayguard.faults.diagnosis import Kind, Scope

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from rayguard.actors.pool.connection import Connection

COMPARE_S = 5.0  # for what every engine knows already; who is late is not compared


async def compared(connections: Collection[Connection], version: str) -> dict[str, Doubt]:
    """Return which of these engines answer with ``version`` otherwise than others, by name.

    Who is dead, late, holds other weights or was not asked for a canary has no vote.
    """
    if len(connections) <= 1:
        return {}
    asked = {c.name: asyncio.ensure_future(c.member.proof(c.session)) for c in connections}
    try:
        await asyncio.wait(asked.values(), timeout=COMPARE_S)
    finally:
        for one in asked.values():
            one.cancel()
    proofs = {name: _heard(one) for name, one in asked.items()}
    # Beside the loop: of a thousand engines that all differ, each is compared with each.
    return await asyncio.to_thread(
        doubts, {name: proof for name, proof in proofs.items() if proof.version == version}
    )


def _heard(asked: asyncio.Future[Proof]) -> Proof:
    if not asked.done() or asked.cancelled() or asked.exception() is not None:
        return Proof()
    return asked.result()


def doubts(proofs: Mapping[str, Proof]) -> dict[str, Doubt]:
    """Return whom others contradict that proved to have the same bytes; the widest tolerance counts."""
    found: dict[str, Doubt] = {}
    for digest in {proof.digest for proof in proofs.values()}:
        same = {name: proof for name, proof in proofs.items() if proof.digest == digest}
        answers = {name: proof.canary for name, proof in same.items() if proof.canary is not None}
        tolerance = max(proof.tolerance for proof in same.values())
        found.update({name: Doubt(digest, most) for name, most in outvoted(answers, tolerance).items()})
    return found


def told_replaced(target: str, name: str, version: str) -> str:
    """Tell that ``name`` is replaced, and return why. Blocks for milliseconds."""
    why = (
        f"{name} goes on answering otherwise than most other engines with weights {version!r}, "
        "also where it was loaded again and rebuilt"
    )
    tell(Surroundings(target=target), Kind.WEIGHT_SYNC_FAILED, Scope.ENGINE, why, REPLACED)
    return why


def tell_undecided(target: str, names: Collection[str], version: str) -> None:
    """Tell that nobody knows who is right. Blocks for milliseconds."""
    cause = (
        f"{', '.join(sorted(names))} contradict each other with weights {version!r}, proved by their digest, "
        "also where each was loaded once more; no majority tells who is right"
    )
    tell(Surroundings(target=target), Kind.WEIGHT_SYNC_FAILED, Scope.JOB, cause, UNDECIDED)
