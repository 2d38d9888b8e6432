"""The death of a worker of a group as an incident: who died, why, and what came of it."""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from rayguard.actors.life import incidents
from rayguard.actors.life.incarnation import Incarnation
from rayguard.faults.diagnosis import Kind, Scope
from rayguard.faults.fault import Fault, Role, facts_of
from rayguard.harmless import harmless
from rayguard.recovery.incident import Incident, Outcome, attach

if TYPE_CHECKING:
    from collections.abc import Mapping

REMEDY = "restart_group"
_ADVICE = "See `rayguard incidents` and the log of the worker that died first"
_log = logging.getLogger("rayguard")


def opened(target: str, method: str, dead: Mapping[int, BaseException], error: BaseException) -> Incident:
    """Return the incident of a call that not all workers lived through."""
    now = time.time()
    rank, first = next(iter(dead.items()))
    who = ", ".join(f"rank {one}" for one in sorted(dead))
    incident = Incident(
        kind=Kind.ACTOR_DIED.value,
        scope=Scope.GROUP.value,
        cause=f"{who} died in {method}",
        target=target,
        detected_at=now,
        remedy=REMEDY,
        advice=_ADVICE,
    )
    with harmless("diagnosis"):
        fault = Fault(role=Role.TRAINER, exceptions=facts_of(first, role=Role.TRAINER, at=now), at=now)
        found = incidents.diagnosed(fault)
        seen = () if first is error else (f"the caller saw {type(error).__name__}: {_line(error)}",)
        incident = replace(
            incident,
            kind=found.kind.value,
            signature=found.signature,
            confidence=found.confidence,
            evidence=(f"rank {rank}: {found.cause}", *found.evidence),
            consequences=seen,
        )
    with harmless("incident"):
        incident = incidents.of_life(incident, Incarnation.of_owner())
        incidents.record(incident)
    _log.warning("rayguard: %s: %s; the whole group is ended", target, incident.cause)
    return incident


def recovered(incident: Incident, *notes: str) -> None:
    """Write that the group is where it was, and has answered the call that was interrupted."""
    with harmless("incident"):
        over = replace(incidents.closed(incident, Outcome.RECOVERED, served=True), notes=notes)
        incidents.record(over)
        _log.warning("rayguard: %s", over.sentence())


def failed(incident: Incident, error: BaseException, why: str) -> None:
    """Write why the group was not recovered, and hang it on the error that its caller gets."""
    with harmless("incident"):
        over = replace(incidents.closed(incident, Outcome.FAILED), notes=(why,))
        incidents.record(over)
        attach(error, over)
        _log.error(
            "rayguard: %s is not recovered: %s. The error goes to the caller: %s",
            over.target,
            why,
            over.cause,
        )


def speaks_of_others(error: BaseException) -> bool:
    """Say whether ``error`` is one that a worker gets because another has gone."""
    with harmless("diagnosis"):
        now = time.time()
        fault = Fault(role=Role.TRAINER, exceptions=facts_of(error, role=Role.TRAINER, at=now), at=now)
        found = incidents.diagnosed(fault)
        return found.scope is Scope.GROUP or found.kind in _OF_OTHERS
    return False


_OF_OTHERS = frozenset(
    {Kind.ACTOR_DIED, Kind.ACTOR_UNAVAILABLE, Kind.NODE_DIED, Kind.NCCL_ERROR, Kind.GLOO_ERROR, Kind.HOST_OOM}
)


def _line(error: BaseException) -> str:
    return next((line for line in reversed(str(error).strip().splitlines()) if line.strip()), "")
