"""A guarded actor's process is ended, so that Ray starts it again, and leaves word for its next life.

When that must be is decided by ``rayguard.recovery.calls`` and ``rayguard.recovery.machine``.
"""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from rayguard.actors.life import current_life, graceful_exit, incidents
from rayguard.actors.life.incarnation import PROCESS_PART, ActorMemory
from rayguard.actors.life.publishing import leave_numbers
from rayguard.harmless import harmless
from rayguard.process.death_cause.killer import RAYGUARD
from rayguard.process.flight import recorder
from rayguard.recovery.incident import Incident, Outcome

_DEATH_OF_CHILDREN_S = 1.0


def end_process(incident: Incident | None) -> NoReturn:
    """End this process, so that Ray starts the actor again and repeats its calls.

    The next life closes ``incident``; None for a restart whose story somebody else tells.
    """
    with harmless("restart"):
        _end_engines()
        recorder.ending(RAYGUARD + (incident.cause if incident else "its process has to be replaced"))
        if incident is not None:
            incidents.record(incident)
            _leave_incident(incident)
        leave_numbers()
        _end_children()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    os._exit(1)  # sys.exit(0) and exit_actor() would mean to Ray that the actor wanted to go, for good


def end_process_after_answer(incident: Incident) -> None:
    """Let this call deliver its answer, then end the process: Ray starts the actor again.

    For a call that must not run twice, and for a process that is replaced between two calls. Called at the
    end of a method.
    """
    if graceful_exit.is_leaving():  # other calls of this process may fail of the same poison
        incidents.record_unless_repeated(incidents.closed(incident, Outcome.ANSWERED))
        return
    _end_engines()
    recorder.ending(RAYGUARD + incident.cause)
    incidents.record(incident)
    _leave_incident(incident)
    leave_numbers()
    graceful_exit.leave_soon(current_life.state.incarnation, _end_children)


def _leave_incident(incident: Incident) -> None:
    now = current_life.state
    word = {
        "restarts": list(now.restarts),
        "incident": incident.to_json(),
        "unserved": now.incident.to_json() if now.incident is not None else None,
    }
    ActorMemory(now.incarnation.actor_id, PROCESS_PART).save(word)


def leave_incident_for(actor_id: str, incident: Incident) -> None:
    """Let the next life of another actor close ``incident``: what ended this one is known elsewhere."""
    memory = ActorMemory(actor_id, PROCESS_PART)
    memory.save({**memory.load(), "incident": incident.to_json()})


def _end_engines() -> None:
    """Let no engine of this process outlive it: what ends it may be in them."""
    own = sys.modules.get("rayguard.engine.adoption.own_leases")
    if own is not None:
        own.revoke_all()


def _end_children() -> None:
    """End what we started and Ray would end too: children in our process group.

    A forked child keeps Ray's connection open: Ray 2.60 does not see the actor's death before the child's
    (measured: 11.7 s instead of 0.01 s).
    """
    from rayguard.process.identity import ProcessId  # noqa: PLC0415 - only on the way out
    from rayguard.process.tree import descendants, end  # noqa: PLC0415

    if os.getpgrp() == os.getpid():
        ours = [child for child in descendants(ProcessId.me()) if _in_our_group(child.pid)]
        end(ours, polite_s=0.0, force_s=_DEATH_OF_CHILDREN_S)


def _in_our_group(pid: int) -> bool:
    try:
        return os.getpgid(pid) == os.getpgrp()
    except ProcessLookupError:
        return False
