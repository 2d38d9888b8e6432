"""Which incidents have one cause: pairs that belong together, found without comparing all with all.

Two kinds of pairs. *Alike*: the same thing again (one root cause in several ranks, an actor that dies again,
several victims on one node), at most so many seconds apart. *Cause and effect*: a node or an actor that is
gone, and what followed from it. Joining pairs into stories is ``rayguard.cluster.supervisor.stories``.
"""

from __future__ import annotations

import re
from bisect import bisect_left, insort
from typing import TYPE_CHECKING

from rayguard.faults.diagnosis import Kind, Scope

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rayguard.recovery.incident import Incident

    Key = tuple[str, ...]

CRASH_LOOP = "cluster.crash_loop"
BUDGET_SPENT = "cluster.restart_budget_spent"

TOGETHER_S = 10.0  # the ranks of one job meet one root cause within seconds
ON_NODE_S = 30.0  # memory that runs out takes one victim after the other
AGAIN_S = 120.0  # of one actor, for the same cause: it comes back, loads, and dies again
LOOP_S = 900.0  # a loop that was found: what led to it
AROUND_S = 10.0  # in one actor: the engine fails, then its process
BEFORE_S = 10.0  # effects may be seen before their cause is: clocks differ, health checks take time
AFTER_S = 60.0

_ACTOR_ID = re.compile(r"\b[0-9a-f]{32}\b")
_NUMBER = re.compile(r"\d+")
_LEFT = {Kind.NODE_DIED.value, Kind.PREEMPTED.value}
# Of a node: whoever uses it is hit, whichever job it belongs to.
_OF_NODE = _LEFT | {
    Kind.GPU_HARDWARE.value,
    Kind.SHM_EXHAUSTED.value,
    Kind.DISK_FULL.value,
    Kind.OBJECT_STORE_FULL.value,
}
_GROUP = {Kind.NCCL_TIMEOUT.value, Kind.NCCL_ERROR.value, Kind.GLOO_ERROR.value}
# They say that somebody else is gone, or that something is, and not why.
_GONE = {Kind.ACTOR_DIED.value, Kind.ENGINE_DEAD.value, Kind.CUDA_ILLEGAL_ACCESS.value}
_ECHO = {
    Kind.ACTOR_UNAVAILABLE.value,
    Kind.GET_TIMEOUT.value,
    Kind.OBJECT_LOST.value,
    Kind.UNKNOWN.value,
    Kind.GCS_UNAVAILABLE.value,
}
_UNEXPLAINED = _GONE | _ECHO
_DEATHS = {Kind.ACTOR_DIED.value, Kind.HOST_OOM.value, Kind.GPU_HARDWARE.value} | _LEFT
_PER_CAUSE = {Scope.REQUEST.value, Scope.CODE.value}  # one signature for many different mistakes


def mentioned(incident: Incident) -> tuple[str, ...]:
    """Return the ids of other actors that an incident names: those whose loss it may have seen."""
    texts = (incident.cause, *incident.evidence, *incident.consequences, *incident.notes)
    found = dict.fromkeys(one for text in texts for one in _ACTOR_ID.findall(text))
    found.pop(incident.actor_id, None)
    return tuple(found)


def of_node(incident: Incident) -> bool:
    """Say whether an incident is about a whole node; the actors that it names are its victims."""
    return incident.kind in _OF_NODE and incident.scope == Scope.NODE.value


def rank(incident: Incident, actors: set[str]) -> int:
    """Order the incidents of a story whose ``actors`` were hit: the lowest names the cause."""
    if incident.signature == CRASH_LOOP:
        return 0
    if of_node(incident):
        return 1
    effect = 3 * bool(actors.intersection(mentioned(incident)))
    if incident.kind in _ECHO:
        return 5 + effect
    if incident.kind in _GROUP:
        return 4 + effect
    return (3 if incident.kind in _GONE else 2) + effect


class Links:
    """Finds the partners of each incident that is added. Invariant: each list is sorted by time."""

    def __init__(self) -> None:
        self._alike: dict[Key, list[tuple[float, str]]] = {}
        self._causes: dict[Key, list[tuple[float, float, str]]] = {}  # from, until, id
        self._effects: dict[Key, list[tuple[float, str]]] = {}

    @staticmethod
    def same(one: Incident, other: Incident) -> bool:
        """Say whether two states of an incident have the same partners."""
        return all(
            list(find(one)) == list(find(other)) and one.detected_at == other.detected_at
            for find in (_alike, _causes, _effects)
        )

    def add(self, incident: Incident) -> set[str]:
        """Return partners that suffice to join ``incident`` with all of its kind."""
        at, one = incident.detected_at, incident.id
        found: set[str] = set()
        for key, within_s in _alike(incident):
            found |= _beside(self._alike.setdefault(key, []), at, one, within_s)
        for key, since, until in _causes(incident):
            found |= {other for _, other in _between(self._effects.get(key, []), since, until)}
            insort(self._causes.setdefault(key, []), (since, until, one))
        for key in _effects(incident):
            found |= {other for since, until, other in self._causes.get(key, []) if since <= at <= until}
            insort(self._effects.setdefault(key, []), (at, one))
        found.discard(one)
        return found


def _beside(there: list[tuple[float, str]], at: float, one: str, within_s: float) -> set[str]:
    """Insert; return the neighbours in time: they join all others that are near enough."""
    place = bisect_left(there, (at, one))
    near = {other for when, other in there[max(0, place - 1) : place + 1] if abs(when - at) <= within_s}
    there.insert(place, (at, one))
    return near


def _between(there: list[tuple[float, str]], since: float, until: float) -> list[tuple[float, str]]:
    return there[bisect_left(there, (since, "")) : bisect_left(there, (until, "\U0010ffff"))]


def _alike(incident: Incident) -> Iterator[tuple[Key, float]]:
    actor, kind, signature = incident.actor_id, incident.kind, incident.signature
    of_one_call = incident.scope in _PER_CAUSE
    said = _NUMBER.sub("", incident.cause) if of_one_call else ""
    if actor:
        yield ("again", actor, kind, said), AGAIN_S
    if actor and not of_one_call:  # whoever sends bad requests all day does not explain a death
        yield ("actor", actor), AROUND_S
    if incident.node and (incident.kind in _OF_NODE or kind == Kind.HOST_OOM.value):
        yield ("node", incident.node, kind), ON_NODE_S
    if kind not in _UNEXPLAINED and signature not in ("", "unknown", BUDGET_SPENT):
        yield ("root", incident.job_id, signature, said), TOGETHER_S


def _causes(incident: Incident) -> Iterator[tuple[Key, float, float]]:
    """Yield where effects of ``incident`` are found, and from when until when."""
    since, until = incident.detected_at - BEFORE_S, incident.detected_at + AFTER_S
    if incident.actor_id:
        yield ("of actor", incident.actor_id), since, until
    if incident.signature == CRASH_LOOP:
        yield ("of loop", incident.actor_id), incident.detected_at - LOOP_S, until
    if of_node(incident) and incident.node:
        until = max(until, (incident.closed_at or 0.0) + AFTER_S)  # a node that drains is gone much later
        yield ("of node", incident.node), since, until
        for actor in mentioned(incident):
            yield ("victim", actor), since, until
    if incident.kind in _DEATHS and incident.signature != BUDGET_SPENT:
        yield ("of job", incident.job_id), incident.detected_at - BEFORE_S, incident.detected_at + ON_NODE_S


def _effects(incident: Incident) -> Iterator[Key]:
    """Yield where the causes of ``incident`` are found."""
    lost = incident.kind in _UNEXPLAINED or incident.kind in _GROUP or incident.kind in _LEFT
    if incident.node and lost:
        yield ("of node", incident.node)
    if incident.actor_id:
        yield ("victim", incident.actor_id)
        yield ("of loop", incident.actor_id)
    if not of_node(incident):
        for actor in mentioned(incident):
            yield ("of actor", actor)
    if incident.scope == Scope.GROUP.value or incident.kind in _GROUP:
        yield ("of job", incident.job_id)
