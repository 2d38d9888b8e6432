"""Looks twice a second for actors that neither answer nor die; the verdict is ``health``'s."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

from rayguard.actors.pool import health
from rayguard.actors.pool.connection import POLL_S
from rayguard.actors.pool.frozen import tell
from rayguard.faults.diagnosis import Kind
from rayguard.recovery.harmless import harmless

if TYPE_CHECKING:
    from rayguard.actors.pool.connection import Connection
    from rayguard.actors.pool.core import PoolCore
    from rayguard.actors.pool.policy import PoolPolicy
    from rayguard.actors.pool.staff import Staff
    from rayguard.actors.pool.wire import Hello

_log = logging.getLogger("rayguard")


async def look_after(core: PoolCore, staff: Staff, policy: PoolPolicy) -> None:
    """Look at all actors, for ever."""
    before = time.monotonic()
    while True:
        await asyncio.sleep(health.TICK_S)
        now = time.monotonic()
        paused_s = now - before if now - before > health.PAUSED * health.TICK_S else 0.0
        before = now
        with harmless("pool"):
            core.compare()
        for connection in list(core.connections.values()):
            with harmless("pool"):
                connection.heard_at += paused_s
                _look(core, connection, staff, policy, now)


def _look(core: PoolCore, connection: Connection, staff: Staff, policy: PoolPolicy, now: float) -> None:
    silent_s = now - connection.heard_at - POLL_S
    if not connection.session or silent_s < health.TICK_S:
        return
    name, state = connection.name, staff.state(connection.name)
    verdict = health.judge(silent_s, state, policy.hang_stopped_s, policy.hang_busy_s)
    if verdict is health.Verdict.FINE:
        return
    _log.warning("rayguard: %s is %s (no answer for %.1f s): it is ended", name, verdict.value, silent_s)
    slot, hello = core.book.slots.get(name), connection.hello
    requests = 0 if slot is None else len(slot.running)
    connection.killed = True
    connection.over(f"{verdict.value}: no answer for {silent_s:.1f} s", kind=Kind.ENGINE_HANG)
    core.spawn(_end(hello, staff, name, silent_s, requests, state))


async def _end(
    hello: Hello | None, staff: Staff, name: str, silent_s: float, requests: int, state: str | None
) -> None:
    if hello is not None and hello.actor_id:
        await asyncio.to_thread(tell, hello, staff.target, silent_s, requests, state)
    staff.restart(name)
