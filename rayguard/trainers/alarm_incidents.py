"""An alarm of training in the log, and as an incident; whether there is one, ``training_alarms`` decides."""

from __future__ import annotations

import logging
import time

from rayguard.actors.life import current_life, incidents
from rayguard.faults.diagnosis import Kind, Scope
from rayguard.harmless import harmless
from rayguard.recovery.incident import Incident, Outcome

_log = logging.getLogger("rayguard")


def tell(kind: str, message: str, advice: str) -> None:
    """Log an alarm and write it down: nothing was restarted for it, its user has the answer."""
    _log.warning("rayguard: %s: %s (%s)", kind, message, advice)
    with harmless("training_alarm"):
        incident = Incident(
            kind=Kind.USER_CODE.value,
            scope=Scope.CODE.value,
            cause=f"{kind}: {message}",
            signature=f"training.{kind}",
            confidence=0.9,
            advice=advice,
            target="training",
            detected_at=time.time(),
            remedy="none",
        )
        life = current_life.state.incarnation
        incidents.record(incidents.closed(incidents.of_life(incident, life), Outcome.ANSWERED))
