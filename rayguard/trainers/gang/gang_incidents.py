"""A fault of a gang as an incident: whose it was, why, and what it cost."""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from rayguard.actors.life import incidents
from rayguard.actors.life.incarnation import Incarnation
from rayguard.errors import StateLostError
from rayguard.faults.diagnosis import Kind, Scope
from rayguard.faults.fault import Fault, Role, facts_of
from rayguard.harmless import harmless
from rayguard.recovery.incident import Incident, Outcome, attach
from rayguard.trainers.gang.verdict import RankEnd

if TYPE_CHECKING:
    from collections.abc import Collection

    from rayguard.trainers.gang.rank_group import StateOrigin
    from rayguard.trainers.gang.rank_watch import Ended
    from rayguard.trainers.gang.verdict import GangVerdict

REMEDY = "restart_group"
_log = logging.getLogger("rayguard")


def opened(target: str, verdict: GangVerdict, ended: Ended | None) -> Incident:
    """Return the incident of a call, or of a join, that not all ranks completed."""
    kind, cause = Kind.UNKNOWN, verdict.cause
    evidence: tuple[str, ...] = ()
    with harmless("diagnosis"):
        kind, evidence = _kind(ended)
    told = tuple(
        f"rank {one.rank}: {one.end.value}{one.cause and f' ({one.cause})'}"
        for one in (() if ended is None else ended.outcomes)
        if one.end is not RankEnd.ANSWERED
    )
    waited = None if ended is None else ended.cut_s
    notes = () if waited is None else (f"all ranks were out {waited:.2f} s after the gang was cut",)
    incident = Incident(
        kind=kind.value,
        scope=(Scope.CODE if verdict.error is not None else Scope.GROUP).value,
        cause=cause,
        evidence=evidence,
        consequences=told,
        target=target,
        detected_at=time.time(),
        remedy=REMEDY,
        notes=notes,
    )
    with harmless("incident"):
        incident = incidents.of_life(incident, Incarnation.of_owner())
        incidents.record(incident)
    _log.warning("rayguard: %s: %s; all ranks go back to their last state", target, cause)
    return incident


def with_dead(incident: Incident, ranks: Collection[int]) -> Incident:
    """Return an incident that names ranks, too, whose death was only found as the gang was begun anew."""
    found = (
        f"rank {rank}: {RankEnd.DEAD.value} (found as the gang was begun anew)" for rank in sorted(ranks)
    )
    told = [one for one in found if one not in incident.consequences]
    return replace(incident, consequences=(*incident.consequences, *told))


def from_origin(incident: Incident, origin: StateOrigin) -> Incident:
    """Return an incident that says where the state has come from, where that is not the ranks' own nodes."""
    if not origin.copies and origin.disk is None:
        return incident
    told = f"a node is lost: the state after {origin.number} calls has come from {origin}"
    _log.warning("rayguard: %s: %s", incident.target, told)
    return replace(incident, notes=(*incident.notes, told))


def closed(incident: Incident, error: BaseException | None) -> None:
    """Write the end of an incident: the gang goes on, or it has given up with ``error``."""
    outcome = Outcome.RECOVERED if error is None else Outcome.FAILED
    if isinstance(error, StateLostError):
        outcome, incident = Outcome.STATE_LOST, replace(incident, notes=(*incident.notes, str(error)))
    if error is None and incident.scope == Scope.CODE.value:
        outcome = Outcome.ANSWERED
    with harmless("incident"):
        over = incidents.closed(incident, outcome, served=error is None)
        incidents.record(over)
        if error is not None:
            attach(error, over)
        _log.warning("rayguard: %s", over.sentence())


def _kind(ended: Ended | None) -> tuple[Kind, tuple[str, ...]]:
    """Return what the first cause is, with what shows it."""
    if ended is None:
        return Kind.UNKNOWN, ()
    if ended.guilty:
        return Kind.NCCL_TIMEOUT, (ended.guilty,)
    for end in (RankEnd.POISONED, RankEnd.DEAD, RankEnd.RAISED, RankEnd.CUT_OFF):
        for one in ended.outcomes:
            if one.end is end and one.error is not None:
                now = time.time()
                facts = facts_of(one.error, role=Role.TRAINER, at=now)
                found = incidents.diagnosed(Fault(role=Role.TRAINER, exceptions=facts, at=now))
                return found.kind, (f"rank {one.rank}: {found.cause}",)
    return Kind.UNKNOWN, ()
