"""What a pool shows of itself to Prometheus: its numbers, at the endpoint of the process that owns it."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from rayguard.actors import presence
from rayguard.actors.incarnation import Incarnation
from rayguard.actors.pool.status import state_of
from rayguard.metrics.pool_tally import POOLS, EngineState, PoolNow
from rayguard.recovery.harmless import harmless

if TYPE_CHECKING:
    from rayguard.actors.pool.core import PoolCore


def show(core: PoolCore) -> None:
    """Show the pool at the endpoint of its node, if there is one, and at one of its own, if asked for."""
    with harmless("metrics"):
        POOLS.opened(core.tally, lambda: now_of(core))
        from rayguard.metrics.exporter import serve_as_configured  # noqa: PLC0415 - loads Prometheus

        serve_as_configured()
    with harmless("numbers"):
        presence.show_numbers(Incarnation.of_owner(), "RolloutPool", if_read=True)


def hide(core: PoolCore) -> None:
    """Show no more than what the pool counted."""
    with harmless("metrics"):
        POOLS.closed(core.tally)


def now_of(core: PoolCore) -> PoolNow:
    """Return what the pool has now. From any thread: whatever is gone through was copied in one step."""
    engines = Counter(state_of(core, name).value for name in list(core.connections))
    engines[EngineState.REPLACING.value] = core.crew.replacing
    engines[EngineState.LOST.value] = core.crew.lost
    running = sum(len(slot.running) for slot in list(core.book.slots.values()))
    return PoolNow(engines, core.book.queued, running)
