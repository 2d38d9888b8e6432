"""When a node gets no more work: after repeated faults of its own, or when many actors die there.

Only the decision. Who reads it: ``rayguard.actors.quarantined_nodes`` (placement), ``rayguard status``
(people).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from rayguard.errors import ConfigError
from rayguard.faults.diagnosis import Kind, Scope

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rayguard.recovery.incident import Incident

_ONE_FAULT_S = 30.0  # eight ranks that meet one broken GPU are one fault of the node
_ONE_WAVE_S = 10.0  # a gang that goes down together says nothing about its node
_LEFT = {Kind.NODE_DIED.value, Kind.PREEMPTED.value}  # the node goes: there is nothing to be kept away from
_KEPT = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantinePolicy:
    """When a node gets no work for ``for_s`` seconds.

    After ``faults`` of its own within ``within_s`` seconds; or when ``actors`` different actors died on it
    within ``actors_within_s``, in ``waves`` or more, while the other nodes together had fewer.

    Raises:
        ConfigError: A number means nothing.
    """

    faults: int = 3
    within_s: float = 900.0
    actors: int = 4
    waves: int = 3
    actors_within_s: float = 600.0
    for_s: float = 1_800.0

    def __post_init__(self) -> None:
        """Refuse a policy that gives up a node for its first fault."""
        for name in ("faults", "actors", "waves"):
            if getattr(self, name) < 2:  # noqa: PLR2004 - once is chance
                raise ConfigError(f"quarantine.{name} must be 2 or more, got {getattr(self, name)}")
        for name in ("within_s", "actors_within_s", "for_s"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"quarantine.{name} must be more than 0 seconds, got {getattr(self, name)}")


@dataclass(frozen=True, slots=True)
class NodeHistory:
    """What went wrong on one node: times of its own faults; (time, actor) of deaths on it. Newest last."""

    faults: tuple[float, ...] = ()
    deaths: tuple[tuple[float, str], ...] = ()

    def with_incident(self, incident: Incident) -> NodeHistory:
        """Return the history with ``incident``, if it is a fault of the node; the same fault counts once."""
        at = incident.detected_at
        if not is_fault_of_node(incident) or any(abs(at - one) < _ONE_FAULT_S for one in self.faults):
            return self
        return replace(self, faults=tuple(sorted((*self.faults, at)))[-_KEPT:])

    def with_death(self, actor_id: str, at: float) -> NodeHistory:
        """Return the history with the death of an actor that nobody wished for."""
        return replace(self, deaths=tuple(sorted((*self.deaths, (at, actor_id))))[-_KEPT:])

    def died(self, now: float, within_s: float) -> int:
        """Return how many different actors died here lately."""
        return len({actor for at, actor in self.deaths if now - at < within_s})

    def waves(self, now: float, within_s: float) -> int:
        """Return in how many waves they died."""
        times = [at for at, _ in self.deaths if now - at < within_s]
        gaps = pairwise(times)
        return bool(times) + sum(later - at > _ONE_WAVE_S for at, later in gaps)


@dataclass(frozen=True, slots=True)
class Quarantine:
    """Until when (wall clock, seconds) a node gets no work, and why."""

    until: float
    why: str


def is_fault_of_node(incident: Incident) -> bool:
    """Say whether a fault is one that another node would not have had."""
    return incident.scope == Scope.NODE.value and incident.kind not in _LEFT and bool(incident.node)


def verdict(
    node: str, nodes: Mapping[str, NodeHistory], policy: QuarantinePolicy, now: float
) -> Quarantine | None:
    """Return the quarantine that ``node`` has earned, if any; ``nodes`` are all that are alive."""
    history = nodes.get(node, NodeHistory())
    faults = sum(now - at < policy.within_s for at in history.faults)
    if faults >= policy.faults:
        return Quarantine(
            now + policy.for_s, f"{faults} faults of this node within {policy.within_s / 60:.0f} min"
        )
    died = history.died(now, policy.actors_within_s)
    waves = history.waves(now, policy.actors_within_s)
    if died < policy.actors or waves < policy.waves or len(nodes) == 1:
        return None
    elsewhere = sum(one.died(now, policy.actors_within_s) for name, one in nodes.items() if name != node)
    if elsewhere >= died:  # they die everywhere: it is the job and not the node
        return None
    why = f"{died} actors died on it within {policy.actors_within_s:.0f} s, {elsewhere} on all others"
    return Quarantine(now + policy.for_s, why)
