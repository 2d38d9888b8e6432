"""Each failed life of a command as an incident in the journal, for ``rayguard incidents`` and metrics."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from rayguard.actors.life import incidents
from rayguard.faults.diagnosis import Scope
from rayguard.harmless import harmless
from rayguard.recovery.incident import Incident, Outcome

if TYPE_CHECKING:
    from rayguard.runner.failure import RunFailure

_REMEDY = "relaunch"


class ToldFailures:
    """Writes the incidents of one run; the last one stays open until it is seen what became of it."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._open: Incident | None = None

    def failed(self, failure: RunFailure, pid: int) -> None:
        """Open the incident of a failure."""
        diagnosis = failure.diagnosis
        self._open = Incident(
            kind=diagnosis.kind.value,
            scope=diagnosis.scope.value if diagnosis.scope is not Scope.UNKNOWN else Scope.JOB.value,
            cause=diagnosis.cause,
            signature=diagnosis.signature,
            confidence=diagnosis.confidence,
            evidence=tuple(one.quote for one in failure.evidence) or diagnosis.evidence,
            consequences=tuple(one.quote for one in failure.consequences),
            advice=diagnosis.advice,
            target=self._target,
            pid=pid,
            detected_at=time.time(),
            tokens_lost=None,
        )

    def relaunched(self, added: str, settings: tuple[str, ...]) -> None:
        """Note what was done about it: the command runs again."""
        if self._open is not None:
            spent = max(0.0, time.time() - self._open.detected_at)
            label = f"{_REMEDY}+{added}" if added else _REMEDY
            self._write(replace(self._open, remedy=label, settings=settings, recover_s=spent))

    def ended(self, outcome: Outcome, note: str = "") -> None:
        """Close it."""
        if self._open is not None:
            notes = (note,) if note else ()
            self._write(incidents.closed(replace(self._open, notes=notes), outcome))
            self._open = None

    def _write(self, incident: Incident) -> None:
        self._open = incident
        with harmless("incident"):
            incidents.record(incident)
