"""Looks twice a second for actors that neither answer nor die (``freeze_verdict``), and that are slow.

The incident of an actor that stood still is told here and closed by the actor's next life.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from rayguard.actors.life import incidents, process_exit
from rayguard.actors.life.incarnation import Incarnation
from rayguard.faults.diagnosis import Kind, Scope
from rayguard.faults.fault import Fault, Role, Silence
from rayguard.harmless import harmless
from rayguard.pool.actors import freeze_verdict
from rayguard.pool.actors.connection import POLL_S, ActorConnection
from rayguard.pool.engine_speed import SLOW
from rayguard.recovery.remedy import Action, Remedy

if TYPE_CHECKING:
    from rayguard.pool.actors.messages import Hello
    from rayguard.pool.core import PoolCore
    from rayguard.pool.ports import ActorProvider
    from rayguard.pool.values.policy import PoolPolicy
    from rayguard.recovery.incident import Incident

_log = logging.getLogger("rayguard")


async def look_after(core: PoolCore, provider: ActorProvider, policy: PoolPolicy) -> None:
    """Look at all actors, for ever."""
    before = time.monotonic()
    while True:
        await asyncio.sleep(freeze_verdict.TICK_S)
        now = time.monotonic()
        paused_s = now - before if now - before > freeze_verdict.PAUSED * freeze_verdict.TICK_S else 0.0
        before = now
        with harmless("pool"):
            _compare_speed(core)
        for connection in list(core.connections.values()):
            with harmless("pool"):
                connection.heard_at += paused_s
                _look(core, connection, provider, policy, now)


def _compare_speed(core: PoolCore) -> None:
    """Give less to engines that are slow beside the others."""
    for name, slowness in core.speed.slowness().items():
        slot, counted = core.book.slots.get(name), slowness if slowness >= SLOW else 1.0
        if slot is None or counted == slot.slowness:
            continue
        if slot.slowness < SLOW <= counted:
            _log.warning("rayguard: %s takes %.1f times as long a token as the others", name, slowness)
        core.book.set_slowness(name, counted)


def _look(
    core: PoolCore, connection: ActorConnection, provider: ActorProvider, policy: PoolPolicy, now: float
) -> None:
    silent_s = now - connection.heard_at - POLL_S
    if not connection.session or silent_s < freeze_verdict.TICK_S:
        return
    name, state = connection.name, provider.state(connection.name)
    verdict = freeze_verdict.judge(silent_s, state, policy.hang_stopped_s, policy.hang_busy_s)
    if verdict is freeze_verdict.FreezeVerdict.FINE:
        return
    _log.warning("rayguard: %s is %s (no answer for %.1f s): it is ended", name, verdict.value, silent_s)
    slot, hello = core.book.slots.get(name), connection.hello
    requests = 0 if slot is None else len(slot.running)
    connection.killed = True
    connection.over(f"{verdict.value}: no answer for {silent_s:.1f} s", kind=Kind.ENGINE_HANG)
    core.spawn(_end(core, name, hello, silent_s, requests, state))


async def _end(
    core: PoolCore, name: str, hello: Hello | None, silent_s: float, requests: int, state: str | None
) -> None:
    provider = core.provider
    if hello is not None and hello.actor_id:
        told = await asyncio.to_thread(_tell, hello, provider.target, silent_s, requests, state)
        if told is not None:
            core.losses.opened(name, told)
    provider.restart(name)


def _tell(hello: Hello, target: str, silent_s: float, requests: int, state: str | None) -> Incident | None:
    """Write the incident and leave word of it for the actor's next life. Blocks for milliseconds."""
    with harmless("incident"):
        now = time.time()
        states = ((hello.pid, state),) if state else ()
        silence = Silence(role=Role.ROLLOUT, silent_s=silent_s, requests=requests, states=states)
        fault = Fault(role=Role.ROLLOUT, operation=target, silence=silence, at=now)
        how = "is stopped" if state in {"T", "t"} else "does not answer its pool"
        diagnosis = replace(
            incidents.diagnosed(fault),
            kind=Kind.ENGINE_HANG,
            scope=Scope.PROCESS,
            cause=f"the actor's process {hello.pid} {how}: {silence}",
        )
        life = Incarnation(actor_id=hello.actor_id, node_id=hello.node_id, pid=hello.pid)
        remedy = Remedy(action=Action.RESTART_PROCESS)
        incident = incidents.opened(fault, diagnosis, remedy, target=target, incarnation=life)
        incident = replace(incident, requests=requests)
        incidents.record(incident)
        process_exit.leave_incident_for(hello.actor_id, incident)
        return incident
    return None
