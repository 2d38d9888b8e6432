"""What runs in a pool, in plain types, for people and dashboards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rayguard.metrics.pool_tally import EngineState, Hire
from rayguard.recovery.tally import TALLY

if TYPE_CHECKING:
    from rayguard.actors.pool.core import PoolCore


def status_of(core: PoolCore) -> dict[str, Any]:
    """Return what runs here, in plain types."""
    return {
        "queued": core.book.queued,
        "running": core.book.running,
        "delivered": core.tally.delivered,
        "failed": core.tally.failed,
        "tokens_saved": core.tally.tokens_saved,
        "replaced": core.tally.hires[Hire.REPLACEMENT.value],
        "replacing": core.crew.replacing,
        "lost": core.crew.lost,
        "weight_version": core.versions.current,
        "gave_up": None if core.final is None else core.final.cause,
        "metrics_url": TALLY.metrics_url,
        "engines": {name: _engine(core, name) for name in core.connections},
    }


def state_of(core: PoolCore, name: str) -> EngineState:
    """Return where an engine stands."""
    slot, connection = core.book.slots.get(name), core.connections.get(name)
    if slot is None or connection is None or connection.hello is None:
        return EngineState.STARTING
    if name in core.draining:
        return EngineState.DRAINING
    return EngineState.SERVING if slot.open else EngineState.FENCED


def _engine(core: PoolCore, name: str) -> dict[str, Any]:
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
