"""What hooks of frameworks tell: a line in the log, and an incident in the journal."""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from rayguard.actors.life import current_life, incidents
from rayguard.harmless import harmless
from rayguard.recovery.incident import Incident, Outcome

if TYPE_CHECKING:
    from rayguard.faults.diagnosis import Kind, Scope

_log = logging.getLogger("rayguard")


def opened(
    kind: Kind, scope: Scope, cause: str, *, signature: str, target: str, advice: str = ""
) -> Incident:
    """Return an incident that begins now, and say so in the log."""
    _log.warning("rayguard: %s: %s%s", target, cause, f" ({advice})" if advice else "")
    found = Incident(
        kind=kind.value,
        scope=scope.value,
        cause=cause,
        signature=signature,
        confidence=0.95,
        advice=advice,
        target=target,
        detected_at=time.time(),
        detect_s=0.0,
    )
    return incidents.of_life(found, current_life.state.incarnation)


def ended(incident: Incident, outcome: Outcome, *, remedy: str, notes: tuple[str, ...] = ()) -> None:
    """Write how it ended; its errors are logged and counted."""
    with harmless("journal"):
        told = replace(incident, remedy=remedy, notes=(*incident.notes, *notes))
        incidents.record(incidents.closed(told, outcome, served=outcome is Outcome.RECOVERED))


def with_evidence(incident: Incident, evidence: tuple[str, ...]) -> Incident:
    """Return it with what was seen."""
    return replace(incident, evidence=evidence)


def still_open(incident: Incident) -> None:
    """Write it down as it stands: its end may never come."""
    with harmless("journal"):
        incidents.record(incident)
