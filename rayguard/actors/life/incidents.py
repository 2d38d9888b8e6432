"""Incidents of guarded actors: built from a verdict, put into the journal, counted.

What an incident is stands in ``rayguard.recovery.incident``; when one arises, in
``rayguard.actors.guard.call_recovery`` and ``rayguard.actors.guard.restarts``.
"""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from rayguard.harmless import harmless
from rayguard.recovery.incident import Incident, Outcome
from rayguard.recovery.tally import TALLY

if TYPE_CHECKING:
    from rayguard.actors.life.incarnation import Incarnation
    from rayguard.faults.diagnosis import Diagnosis
    from rayguard.faults.fault import Fault
    from rayguard.recovery.remedy import Remedy

QUIET_S = 60.0
_REMEMBERED = 256

_last_written: dict[tuple[str, str], float] = {}
_lock = threading.Lock()


def diagnosed(fault: Fault) -> Diagnosis:
    """Return the catalog's verdict; the catalog is loaded at the first fault, not at import."""
    from rayguard.faults.diagnose import diagnose  # noqa: PLC0415 - see above

    return diagnose(fault)


def opened(
    fault: Fault, diagnosis: Diagnosis, remedy: Remedy, *, target: str, incarnation: Incarnation
) -> Incident:
    """Return the incident of ``fault``, still open."""
    notes = (remedy.reason,) if remedy.reason else ()
    incident = replace(Incident.of(fault, diagnosis), target=target, remedy=remedy.label, notes=notes)
    return of_life(incident, incarnation)


def of_life(incident: Incident, incarnation: Incarnation) -> Incident:
    """Return ``incident`` as one of this life of an actor."""
    return replace(
        incident,
        actor_id=incarnation.actor_id,
        job_id=incarnation.job_id,
        node=incarnation.node_id,
        pid=incarnation.pid,
        incarnation=incarnation.number,
    )


def closed(incident: Incident, outcome: Outcome, *, served: bool = False) -> Incident:
    """Return ``incident`` with its end; ``served`` says that this is the moment it worked again."""
    now = time.time()
    spent = max(0.0, now - incident.detected_at) if served else incident.recover_s
    return replace(incident, outcome=outcome, closed_at=now, recover_s=spent)


def record(incident: Incident) -> None:
    """Write ``incident`` to the journal and count it once it is closed."""
    with _lock:
        _last_written[incident.signature, incident.cause] = time.monotonic()
        while len(_last_written) > _REMEMBERED:
            del _last_written[next(iter(_last_written))]
    if incident.outcome is Outcome.OPEN:
        TALLY.opened(incident)
    else:
        TALLY.closed(incident)
    with harmless("journal"):
        from rayguard.recovery.journal import default_journal  # noqa: PLC0415 - costs 0.2 s on first use

        default_journal().write(incident)


def record_unless_repeated(incident: Incident) -> None:
    """Count ``incident``, and write it unless the same cause was written within the last minute.

    A user's exception raised a thousand times a second would fill the journal and cost an fsync each.
    """
    before = _last_written.get((incident.signature, incident.cause))
    if before is not None and time.monotonic() - before < QUIET_S:
        TALLY.closed(incident)
    else:
        record(incident)
