"""What a rank tells of an error: the error itself, and what it means for its process and for the others."""

from __future__ import annotations

import time
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rayguard.faults.diagnosis import Scope
from rayguard.faults.fault import Fault, Role, facts_of
from rayguard.harmless import harmless
from rayguard.recovery.incident import Incident, attach
from rayguard.trainers.gang.verdict import RankEnd

if TYPE_CHECKING:
    from rayguard.faults.diagnosis import Diagnosis


@dataclass(frozen=True, slots=True)
class RankReply:
    """What a rank answers: ``value``, or ``error`` as bytes (``cloudpickle``) with what it means."""

    value: Any = None
    error: bytes | None = None
    end: RankEnd = RankEnd.ANSWERED
    cause: str = ""

    def raised(self) -> BaseException | None:
        """Return the error; None where there is none."""
        if self.error is None:
            return None
        from ray import cloudpickle  # noqa: PLC0415 - only after an error

        try:
            found: BaseException = cloudpickle.loads(self.error)
        except Exception:  # noqa: BLE001 - a class that the owner does not have
            return RuntimeError(self.cause)
        return found


def reply_of(error: Exception, *, after_cut: bool) -> RankReply:
    """Return what an error means. ``after_cut``: this rank had been taken out of what it did."""
    diagnosis = None
    incident = None
    if not after_cut:
        with harmless("diagnosis"):
            from rayguard.faults.diagnose import diagnose  # noqa: PLC0415 - loads the catalog, only on failure

            now = time.time()
            fault = Fault(role=Role.TRAINER, exceptions=facts_of(error, role=Role.TRAINER, at=now), at=now)
            diagnosis = diagnose(fault)
            incident = Incident.of(fault, diagnosis)
    end = RankEnd.CUT_OFF if after_cut else _end(diagnosis)
    if end is RankEnd.RAISED and incident is not None:
        attach(error, incident)
    where = traceback.extract_tb(error.__traceback__)[-1:]
    at = "".join(f" (line {one.lineno} of {one.filename})" for one in where)
    return RankReply(error=_packed(error), end=end, cause=f"{type(error).__name__}: {error}{at}")


def _end(diagnosis: Diagnosis | None) -> RankEnd:
    if diagnosis is None:
        return RankEnd.RAISED
    if diagnosis.scope is Scope.GROUP:  # the group is broken, and is made anew; the process is not
        return RankEnd.CUT_OFF
    return RankEnd.POISONED if diagnosis.poisoned else RankEnd.RAISED


def _packed(error: Exception) -> bytes:
    from ray import cloudpickle  # noqa: PLC0415 - an actor runs here

    try:
        packed: bytes = cloudpickle.dumps(error)
    except Exception:  # noqa: BLE001 - an error that holds a lock, say
        return bytes(cloudpickle.dumps(RuntimeError(f"{type(error).__name__}: {error}")))
    return packed
