"""What an incident says of memory: one for a concern, from its first relief until it is over."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rayguard.actors.life import current_life, incidents
from rayguard.faults.diagnosis import Kind, Scope
from rayguard.memory.reading import Quantity
from rayguard.recovery.incident import Incident

if TYPE_CHECKING:
    from rayguard.memory.judge import Concern

ELSEWHERE = {
    Quantity.STORE: Kind.OBJECT_STORE_FULL,
    Quantity.SHM: Kind.SHM_EXHAUSTED,
    Quantity.DISK: Kind.DISK_FULL,
}
_ADVICE = (
    "see who holds what with `rayguard memory`; let go of what each step made (rayguard.object_scope), make "
    "batches or offloading smaller, or let the actor be recycled (rayguard.MemoryPolicy)"
)
_OF_AN_ENGINE = (
    "see what its processes hold with `rayguard memory`; a newer version of the engine may not leak"
)


def opened(concern: Concern, target: str, where: str, found: str = "") -> Incident:
    """Return an open incident of ``concern`` in ``target``; ``found``: what is known to grow."""
    engine = concern.quantity is Quantity.ENGINE
    told = Incident(
        kind=ELSEWHERE.get(concern.quantity, Kind.HOST_OOM).value,
        scope=(Scope.ENGINE if engine else Scope.PROCESS).value,
        cause=f"{concern.why}, {where}",
        signature=f"memory.{'forecast' if concern.need.soon else concern.need.pressure.name.lower()}",
        confidence=concern.forecast.confidence if concern.forecast is not None else 1.0,
        advice=_OF_AN_ENGINE if engine else _ADVICE,
        target=target,
        detected_at=time.time(),
        detect_s=0.0,
        notes=(found,) if found else (),
    )
    return incidents.of_life(told, current_life.state.incarnation)
