"""What ended the life of an actor before this one: the incident it left word of, else what Ray knows."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rayguard.actors.life import current_life, incidents
from rayguard.actors.life.incarnation import PastDeath
from rayguard.actors.life.postmortem import Postmortem
from rayguard.actors.life.publishing import last_page
from rayguard.faults.diagnosis import Diagnosis, Kind, Scope
from rayguard.faults.fault import Fault, ProcessExit, Role
from rayguard.harmless import harmless
from rayguard.recovery.incident import Incident
from rayguard.recovery.remedy import Action, Remedy

if TYPE_CHECKING:
    from rayguard.actors.mark import Guarding

_GONE = "exit code unknown"  # what a verdict quotes of an exit that nobody can explain
_BY_RAY = Remedy(
    action=Action.RESTART_PROCESS, reason="only watched: Ray started it again, as it was told to"
)


def incident_of_last_life(lives_so_far: dict[str, Any], target: str, mark: Guarding) -> Incident:
    """Return the incident that ended the last life: the one it left word of, else what Ray knows."""
    # What ran in its engine is known to nobody: the count died with the process.
    lost = None if mark.role is Role.ROLLOUT else 0
    life = current_life.state.incarnation
    actor_id = life.actor_id
    if lives_so_far.get("incident"):
        left = replace(Incident.from_json(lives_so_far["incident"]), tokens_lost=lost)
        return Postmortem.of_word(left.pid, actor_id).noted_on(left)
    death = PastDeath.before_this() or PastDeath(0, time.time(), "Ray no longer knows how it ended")
    return incident_of_death(death, life.number - 1, target, mark)


def incident_of_death(death: PastDeath, number: int, target: str, mark: Guarding) -> Incident:
    """Return the incident of the end of the actor's life ``number``, as Ray saw it."""
    lost, actor_id = None if mark.role is Role.ROLLOUT else 0, current_life.state.incarnation.actor_id
    exits = (ProcessExit(role=mark.role, pid=death.pid, exitcode=death.exitcode, at=death.at),)
    found = Postmortem.of(death, actor_id)
    fault = Fault(role=mark.role, exits=exits, log=(death.how, *found.log), at=death.at)
    diagnosis = found.judged(_of_a_process(incidents.diagnosed(fault), death), death)
    remedy = _BY_RAY if mark.watching else Remedy(action=Action.RESTART_PROCESS)
    incident = incidents.opened(
        fault, diagnosis, remedy, target=target, incarnation=current_life.state.incarnation
    )
    with harmless("status"):
        incident = replace(incident, notes=(*incident.notes, *last_page(death.pid, death.at)))
    incident = found.noted_on(incident)
    node = death.node_id or incident.node  # perhaps another one
    return replace(incident, pid=death.pid, node=node, incarnation=number, tokens_lost=lost)


def _of_a_process(diagnosis: Diagnosis, death: PastDeath) -> Diagnosis:
    """Return the verdict on a death; where it knows only that the process is gone, with Ray's word of it."""
    if diagnosis.kind is not Kind.UNKNOWN and (death.exitcode is not None or _GONE not in diagnosis.cause):
        return diagnosis
    how = "died without a word: by SIGKILL (also of the kernel, out of memory) or os._exit"
    if death.exitcode is not None:
        how = f"ended with exit code {death.exitcode}"
    cause = f"the actor's process {death.pid} {how}; {death.how}"
    return replace(diagnosis, kind=Kind.ACTOR_DIED, scope=Scope.PROCESS, cause=cause, evidence=(death.how,))
