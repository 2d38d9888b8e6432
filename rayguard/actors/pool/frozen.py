"""The story of an actor that stood still: told by its pool, closed by the actor's next life."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from rayguard.actors import ending, records
from rayguard.actors.incarnation import Incarnation
from rayguard.faults.diagnosis import Kind, Scope
from rayguard.faults.fault import Fault, Role, Silence
from rayguard.recovery.harmless import harmless
from rayguard.recovery.remedy import Action, Remedy

if TYPE_CHECKING:
    from rayguard.actors.pool.wire import Hello


def tell(hello: Hello, target: str, silent_s: float, requests: int, state: str | None) -> None:
    """Write the incident and leave word of it for the actor's next life. Blocks for milliseconds."""
    with harmless("incident"):
        now = time.time()
        states = ((hello.pid, state),) if state else ()
        silence = Silence(role=Role.ROLLOUT, silent_s=silent_s, requests=requests, states=states)
        fault = Fault(role=Role.ROLLOUT, operation=target, silence=silence, at=now)
        how = "is stopped" if state in {"T", "t"} else "does not answer its pool"
        diagnosis = replace(
            records.diagnosed(fault),
            kind=Kind.ENGINE_HANG,
            scope=Scope.PROCESS,
            cause=f"the actor's process {hello.pid} {how}: {silence}",
        )
        life = Incarnation(actor_id=hello.actor_id, node_id=hello.node_id, pid=hello.pid)
        remedy = Remedy(action=Action.RESTART_PROCESS)
        incident = records.opened(fault, diagnosis, remedy, target=target, incarnation=life)
        incident = replace(incident, requests=requests)
        records.record(incident)
        ending.leave_word_for(hello.actor_id, incident)
