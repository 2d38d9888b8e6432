"""Lost servers and replicas as incidents: a server is told once, by the client whose request met it first."""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from rayguard.actors.life import incidents
from rayguard.faults.diagnosis import Kind, Scope
from rayguard.faults.fault import Fault, Role, facts_of
from rayguard.frameworks import told
from rayguard.harmless import harmless
from rayguard.recovery.incident import Incident, Outcome, attach

if TYPE_CHECKING:
    from collections.abc import Sequence

_log = logging.getLogger("rayguard")
REMEDY = "other_replica"
REBUILD = "new_replica"
_CAUSES = {
    Kind.ACTOR_DIED: "the server's actor died while it generated",
    Kind.ACTOR_UNAVAILABLE: "the server's actor could not be reached while it generated",
    Kind.ENGINE_DEAD: "the server's engine died while it generated",
}
BLANK = "the server answers without the trainer's weights, which it had: it was started anew"


def opened(server: str, kind: Kind, error: BaseException | None) -> Incident:
    """Return the incident of a server that was lost under a request; no ``error``: it came back blank."""
    cause = BLANK if error is None else _CAUSES[kind]
    scope = Scope.ENGINE if kind is Kind.ENGINE_DEAD else Scope.PROCESS
    found = told.opened(kind, scope, cause, signature="verl.rollouts.server_lost", target=f"verl {server}")
    if error is not None:
        with harmless("diagnosis"):
            now = time.time()
            fault = Fault(role=Role.ROLLOUT, exceptions=facts_of(error, role=Role.ROLLOUT, at=now), at=now)
            diagnosed = incidents.diagnosed(fault)
            found = told.with_evidence(found, (diagnosed.cause, *diagnosed.evidence))
    told.still_open(found)
    return found


def recovered(found: Sequence[Incident], by: str) -> None:
    """Write that the request was answered by another server, or by the same one once it could be reached."""
    for one in found:
        same = one.target == f"verl {by}"
        note = (
            "it has the trainer's weights: it stays"
            if same
            else f"answered by {by}; the lost one gets no more requests, also if it should come back"
        )
        told.ended(one, Outcome.RECOVERED, remedy=REMEDY, notes=(note,))
        _log.warning("rayguard: %s: the request was made again: %s", one.target, note)


def failed(found: Sequence[Incident], error: BaseException | None, why: str) -> None:
    """Write why the request was not made again, and hang the last incident on its error."""
    for one in found:
        told.ended(one, Outcome.FAILED, remedy=REMEDY, notes=(why,))
        _log.error(
            "rayguard: %s: the request is not made again, its error goes to the caller: %s", one.target, why
        )
    if found and error is not None:
        with harmless("incident"):
            attach(error, replace(found[-1], notes=(why,)))


def replica_opened(rank: object, kind: Kind) -> Incident:
    """Return the incident of a lost replica that is to be made again."""
    dead_engine = kind is Kind.ENGINE_DEAD
    cause = "the engine of one of its servers died" if dead_engine else "one of its actors died"
    scope = Scope.ENGINE if dead_engine else Scope.PROCESS
    target = f"verl replica {rank}"
    found = told.opened(kind, scope, cause, signature="verl.rollouts.replica_lost", target=target)
    told.still_open(found)
    return found


def replica_serves(one: Incident, address: str, step: object) -> None:
    """Write that another replica has taken its place, and is sent requests."""
    note = f"made again as {address}: it is sent requests, as a weight update has reached it (step {step})"
    told.ended(one, Outcome.RECOVERED, remedy=REBUILD, notes=(note,))
    _log.warning("rayguard: %s: %s", one.target, note)


def replica_given_up(one: Incident, why: str) -> None:
    """Write why it is not made again: the job goes on with the others."""
    told.ended(one, Outcome.FAILED, remedy=REBUILD, notes=(why,))
    _log.error("rayguard: %s is not made again, the job goes on with the others: %s", one.target, why)
