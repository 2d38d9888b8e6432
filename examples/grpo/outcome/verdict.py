"""Did the guard get it right? Joins each fault that was fired with its incident and names every miss.

Pure: history in, verdict out.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rayguard.faults.diagnosis import Kind, Scope
from rayguard.recovery.incident import Outcome
from rayguard.testing.injector import What

if TYPE_CHECKING:
    from collections.abc import Iterator

    from examples.grpo.history import History, KilledRank
    from rayguard.recovery.incident import Incident
    from rayguard.testing.injector import FiredFault

MAX_LOGP_DIFF = 1e-4
LEARNED = 0.9


@dataclass(frozen=True, slots=True)
class Expected:
    """What a careful engineer would say about a fault: kind, scope, and words its cause must quote."""

    kind: Kind
    scope: Scope
    cause: str  # regular expression; {pid} is the process that was hit


EXPECTED = {
    What.SCHEDULER_ASSERTION: Expected(
        Kind.SCHEDULER_ASSERTION, Scope.ENGINE, r"AssertionError.*\bblock_pool\.py:\d+"
    ),
    What.SEEDED_PARTIAL_PREFILL: Expected(
        Kind.ENGINE_INTERNAL_ERROR, Scope.ENGINE, r"CPU Generator does not use offset.*\.py:\d+"
    ),
    What.KILL_CORE: Expected(Kind.ENGINE_DEAD, Scope.ENGINE, r"\bengine_core process {pid}\b"),
    What.KILL_WORKER: Expected(Kind.ENGINE_DEAD, Scope.ENGINE, r"\bengine_worker process {pid}\b.*signal 9"),
    What.STOP_CORE: Expected(Kind.ENGINE_HANG, Scope.ENGINE, r"no progress for .*\b{pid} T\b"),
    What.KILL_ACTOR: Expected(Kind.ACTOR_DIED, Scope.PROCESS, r"\bprocess {pid}\b"),
}


@dataclass(frozen=True, slots=True)
class Joined:
    """A fault and what the guard made of it."""

    fault: FiredFault
    incident: Incident | None

    @property
    def detect_s(self) -> float | None:
        """Seconds from the blow to its detection.

        Nobody strikes the blow of a natural fault: for those, from the engine's own record of it.
        """
        if self.incident is None:
            return None
        if self.fault.planned.what is What.SEEDED_PARTIAL_PREFILL:
            return self.incident.detect_s
        return self.incident.detected_at - self.fault.at


def join(history: History) -> list[Joined]:
    """Give each fault the first incident of its rollout between it and the next fault of that."""
    return [Joined(fault, next(iter(mine), None)) for fault, mine in _by_fault(history)]


def problems(history: History) -> list[str]:
    """Return everything that is not as it must be, each in one sentence; empty when all is well."""
    found = [*_unfinished(history), *_lost_or_wrong(history)]
    if not history.guarded:
        return found  # nobody was there to write incidents
    found += _unwatched(history)
    by_fault = _by_fault(history)
    for fault, mine in by_fault:
        name = f"{fault.planned.what.value} of rollout {fault.planned.target} at step {fault.planned.step}"
        found += [f"{name}: {miss}" for miss in _misjudged(fault, mine)]
    known = {incident.id for _, mine in by_fault for incident in mine}
    for killed, incident in killed_ranks(history):
        name = f"the death of rank {killed.rank} at step {killed.step}"
        found += [f"{name}: {miss}" for miss in _misjudged_rank(killed.rank, incident)]
        known |= {incident.id} if incident else set()
    if history.gang and not history.killed_ranks:
        found.append("no rank of the gang was killed: the run ended before that")
    strays = [incident for incident in history.incidents if incident.id not in known]
    return found + [f"an incident without a fault: {stray.sentence()}" for stray in strays]


def killed_ranks(history: History) -> list[tuple[KilledRank, Incident | None]]:
    """Return each killed rank with the incident of its gang that came first after it."""
    of_gangs = [incident for incident in history.incidents if incident.scope == Scope.GROUP.value]
    return [
        (killed, next((one for one in of_gangs if one.detected_at >= killed.at), None))
        for killed in history.killed_ranks
    ]


def _misjudged_rank(rank: int, incident: Incident | None) -> Iterator[str]:
    if incident is None:
        yield "has no incident"
        return
    if f"rank {rank} died" not in incident.cause:
        yield f"was told as: {incident.cause}"
    if incident.outcome is not Outcome.RECOVERED:
        yield f"ended as {incident.outcome.value} instead of recovered"


def _by_fault(history: History) -> list[tuple[FiredFault, list[Incident]]]:
    """Return each fault with its rollout's incidents until the next there, for which the loop waits."""
    faults = sorted(history.fired, key=lambda fault: fault.at)
    return [(fault, _of(fault, faults[number + 1 :], history)) for number, fault in enumerate(faults)]


def _of(fault: FiredFault, later: list[FiredFault], history: History) -> list[Incident]:
    target = fault.planned.target
    end = next((other.at for other in later if other.planned.target == target), float("inf"))
    actor_id = history.rollouts[target].actor_id
    return [
        seen for seen in history.incidents if seen.actor_id == actor_id and fault.at <= seen.detected_at < end
    ]


def _misjudged(fault: FiredFault, incidents: list[Incident]) -> Iterator[str]:
    if len(incidents) != 1:
        yield f"has {len(incidents)} incidents instead of one: {[seen.kind for seen in incidents]}"
    expected = EXPECTED[fault.planned.what]
    for incident in incidents[:1]:
        if incident.kind != expected.kind.value:
            yield f"was taken for {incident.kind}, it is {expected.kind.value} (cause: {incident.cause})"
        if incident.scope != expected.scope.value:
            yield f"got the scope {incident.scope} instead of {expected.scope.value}"
        quote = expected.cause.replace("{pid}", str(fault.pid))
        if not re.search(quote, incident.cause, re.DOTALL):
            yield f"its cause does not quote {quote}: {incident.cause}"
        if expected.scope is Scope.ENGINE and not incident.requests:
            yield "hit an idle engine: no request was interrupted, so nothing was shown"
        if incident.outcome is not Outcome.RECOVERED:
            yield f"ended as {incident.outcome.value} instead of recovered"


def _lost_or_wrong(history: History) -> Iterator[str]:
    done = history.deliveries
    if done.delivered != done.expected:
        yield f"{done.expected - done.delivered} of {done.expected} requests never came back"
    if done.duplicated:
        yield f"{done.duplicated} samples came back twice"
    if done.short:
        yield f"{done.short} samples are not whole"
    if done.stale:
        yield f"{done.stale} samples were made by other weights than their step's"
    worst = max((step.logp_diff for step in history.steps), default=0.0)
    if not worst <= MAX_LOGP_DIFF:  # a NaN is caught too
        yield f"rollout and trainer disagree about a logprob by {worst:.2g} (allowed {MAX_LOGP_DIFF:.0e})"


def _unwatched(history: History) -> Iterator[str]:
    if history.failure:
        return  # it may have ended before they began
    seen = {process.actor_id for process in history.memory if process.most > 0}
    for number, rollout in enumerate(history.rollouts):
        if rollout.actor_id not in seen:
            yield f"nothing is known of the memory of rollout {number}"


def _unfinished(history: History) -> Iterator[str]:
    if history.failure:
        yield f"the run ended early, {history.failure}"
        return
    if history.never_fired:
        yield f"planned, but never fired: {', '.join(history.never_fired)}"
    if history.steps[-1].reward < LEARNED:
        yield f"the reward is {history.steps[-1].reward:.2f} at the end: the model did not learn ({LEARNED})"
