"""Who an engine belongs to, read from Ray: the real ``Surroundings`` of an engine slot in an actor."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rayguard.actors.ending import end_process
from rayguard.actors.incarnation import ActorMemory, Incarnation
from rayguard.actors.presence import refresh, show
from rayguard.engine.surroundings import Surroundings
from rayguard.recovery.harmless import harmless

if TYPE_CHECKING:
    from typing import Any


def surroundings_of(owner: object) -> Surroundings:
    """Return the surroundings of the engine that ``owner`` (an actor, or a plain object) starts now."""
    life = Incarnation()
    with harmless("incarnation"):
        life = Incarnation.current()
    memory = ActorMemory(life.actor_id, part="engine")
    name = _called(owner)
    show(life, name)
    return Surroundings(
        target=name,
        actor_id=life.actor_id,
        job_id=life.job_id,
        node=life.node_id,
        incarnation=life.number,
        recall=memory.load,
        remember=memory.save,
        changed=refresh,
        restartable=lambda: life.restartable,
        die=lambda: end_process(None),
    )


def _called(owner: Any) -> str:
    return type(owner).__qualname__.rpartition(".")[2]
