"""An incident of an engine, written while it happens: opened at detection, closed when it is over."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from rayguard.engine.evidence import began_at
from rayguard.faults.diagnosis import Kind, Scope
from rayguard.harmless import harmless
from rayguard.recovery.incident import Incident, Outcome
from rayguard.recovery.tally import TALLY

if TYPE_CHECKING:
    from rayguard.engine.context import Surroundings
    from rayguard.engine.protocol import Carried
    from rayguard.faults.diagnosis import Diagnosis
    from rayguard.faults.fault import Fault
    from rayguard.recovery.remedy import Remedy


class EngineStory:
    """One incident. Its first version is in the journal before anything is done about it."""

    def __init__(
        self,
        surroundings: Surroundings,
        fault: Fault,
        diagnosis: Diagnosis,
        *,
        detected_at: float,
        epoch: int,
        requests: int,
    ) -> None:
        self._around = surroundings
        began = began_at(fault)
        self.incident = replace(
            surroundings.signed(Incident.of(fault, diagnosis)),
            epoch=epoch,
            detected_at=detected_at,
            detect_s=None if began is None else max(0.0, detected_at - began),
            requests=requests,
            tokens_lost=None if requests else 0,
            notes=() if fault.silence is None else fault.silence.evidence,
        )
        self._write()

    def treated(self, remedy: Remedy) -> None:
        """Note what is about to be done; the newest remedy of an emergency is the one that counts."""
        self.incident = replace(self.incident, remedy=remedy.label, rung=remedy.rung, settings=remedy.applied)
        self._write()

    def note(self, text: str) -> None:
        """Add a line for people."""
        self.incident = replace(self.incident, notes=(*self.incident.notes, text))

    def close(self, outcome: Outcome, carried: Carried | None = None) -> Incident:
        """Write how it ended and count it."""
        now = self._around.now()
        self.incident = replace(
            self.incident,
            outcome=outcome,
            closed_at=now,
            recover_s=now - self.incident.detected_at if outcome is Outcome.RECOVERED else None,
            tokens_saved=0 if carried is None else carried.tokens_saved,
            tokens_lost=self.incident.tokens_lost if carried is None else carried.tokens_lost,
        )
        self._write()
        TALLY.closed(self.incident)
        return self.incident

    def _write(self) -> None:
        with harmless("journal"):
            self._around.write(self.incident)


def weights_lost(why: str) -> Incident:
    """Return the incident of an engine that begins without the weights that its user pushed."""
    return Incident(
        kind=Kind.WEIGHT_SYNC_FAILED.value,
        scope=Scope.ENGINE.value,
        cause=why,
        signature="rayguard.weights",
        confidence=0.97,
        advice="push the weights again; give start_engine(weights=lambda engine: ...)",
        outcome=Outcome.STATE_LOST,
    )
