"""What this process knows of the life that it is; one guarded actor lives in a process."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from rayguard.actors.life.incarnation import Incarnation
from rayguard.recovery.actor_life import ActorLife

if TYPE_CHECKING:
    from rayguard.recovery.incident import Incident


@dataclass(frozen=True, slots=True)
class LifeState:
    """What this process knows of the life that it is, and of those before it."""

    incarnation: Incarnation
    life: ActorLife = field(default_factory=ActorLife)
    incident: Incident | None = None  # the death that led to this life, until the actor serves again
    told: Incident | None = None  # the same, closed, from then on

    @property
    def restarts(self) -> tuple[float, ...]:
        """Return when its process was restarted: wall-clock seconds, of those that still count."""
        return self.life.restarts


state = LifeState(Incarnation())  # replaced as a whole: read it as `current_life.state`


def note(what: str) -> None:
    """Add ``what`` to the story of the death that led to this life, where there was one."""
    global state  # noqa: PLW0603 - replaced as a whole
    if state.incident is not None:
        incident = state.incident
        state = replace(state, incident=replace(incident, notes=(*incident.notes, what)))
