"""What runs in a pool: in plain types for people, in numbers for Prometheus."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from rayguard.actors.life import publishing
from rayguard.actors.life.incarnation import Incarnation
from rayguard.harmless import harmless
from rayguard.metrics.instruments.pool_tally import POOLS, Hire, PoolEngineState, PoolNow
from rayguard.recovery.tally import TALLY

if TYPE_CHECKING:
    from rayguard.pool.core import PoolCore


def status_of(core: PoolCore) -> dict[str, object]:
    """Return what runs here, in plain types."""
    return {
        "queued": core.book.queued,
        "running": core.book.running,
        "delivered": core.tally.delivered,
        "failed": core.tally.failed,
        "tokens_saved": core.tally.tokens_saved,
        "tokens_lost": core.tally.tokens_lost,
        "replaced": core.tally.hires[Hire.REPLACEMENT.value],
        "replacing": core.fleet.replacing,
        "lost": core.fleet.lost,
        "weight_version": core.versions.current,
        "gave_up": None if core.final is None else core.final.cause,
        "metrics_url": TALLY.metrics_url,
        "engines": {name: _engine(core, name) for name in core.connections},
    }


def state_of(core: PoolCore, name: str) -> PoolEngineState:
    """Return where an engine stands."""
    slot, connection = core.book.slots.get(name), core.connections.get(name)
    if slot is None or connection is None or connection.hello is None:
        return PoolEngineState.STARTING
    if name in core.draining:
        return PoolEngineState.DRAINING
    return PoolEngineState.SERVING if slot.open else PoolEngineState.FENCED


def _engine(core: PoolCore, name: str) -> dict[str, object]:
    slot, hello = core.book.slots.get(name), core.connections[name].hello
    return {
        "state": state_of(core, name).value,
        "running": 0 if slot is None else len(slot.running),
        "capacity": 0 if slot is None else slot.capacity,
        "slowness": 1.0 if slot is None else round(slot.slowness, 2),
        "weight_version": core.versions.of(name),
        "node_id": "" if hello is None else hello.node_id,
        "actor_id": "" if hello is None else hello.actor_id,
        "pid": None if hello is None else hello.pid,
        "last_loss": core.causes.get(name, ""),
    }


def show(core: PoolCore) -> None:
    """Show the pool at the endpoint of its node, if there is one, and at one of its own, if asked for."""
    with harmless("metrics"):
        POOLS.opened(core.tally, lambda: now_of(core))
        from rayguard.metrics.configured import serve_as_configured  # noqa: PLC0415 - loads the settings

        serve_as_configured()
    with harmless("numbers"):
        publishing.show_numbers(Incarnation.of_owner(), "RolloutPool", if_read=True)


def hide(core: PoolCore) -> None:
    """Show no more than what the pool counted."""
    with harmless("metrics"):
        POOLS.closed(core.tally)


def now_of(core: PoolCore) -> PoolNow:
    """Return what the pool has now. From any thread: whatever is gone through was copied in one step."""
    engines = Counter(state_of(core, name).value for name in list(core.connections))
    engines[PoolEngineState.REPLACING.value] = core.fleet.replacing
    engines[PoolEngineState.LOST.value] = core.fleet.lost
    running = sum(len(slot.running) for slot in list(core.book.slots.values()))
    return PoolNow(engines, core.book.queued, running)
