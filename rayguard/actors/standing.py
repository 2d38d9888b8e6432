"""What this process knows of the life that it is; one guarded actor lives in a process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rayguard.actors.incarnation import Incarnation

if TYPE_CHECKING:
    from rayguard.recovery.incident import Incident


@dataclass(frozen=True, slots=True)
class Standing:
    """What this process knows of the lives before it: ``restarts`` are wall-clock seconds."""

    incarnation: Incarnation
    restarts: tuple[float, ...] = ()
    incident: Incident | None = None  # the death that led to this life, until the actor serves again


present = Standing(Incarnation())  # replaced as a whole; a module says `standing.present`
