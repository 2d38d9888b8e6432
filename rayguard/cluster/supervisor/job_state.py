"""What the supervisor of a job knows. What follows from an event is in ``job_machine`` beside this.

Keeping it beyond the process is ``rayguard.cluster.supervisor.snapshot``.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING

from rayguard.cluster.supervisor.events import ActorSeen, ActorState
from rayguard.cluster.supervisor.policy import SupervisorPolicy
from rayguard.cluster.supervisor.restart_budget import Crashes
from rayguard.cluster.supervisor.stories import Stories, Story
from rayguard.metrics.instruments.job import JobReading

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from rayguard.cluster.supervisor.quarantine import NodeHistory, Quarantine
    from rayguard.recovery.incident import Incident

# After this a story is counted under its kind: a cause may be told later than what followed from it.
SETTLED_S = 15.0
_COUNTED = 4_096
LATE_S = 600.0  # what is told later than this of an earlier time changes nothing any more


@dataclass(frozen=True, slots=True, kw_only=True)
class JobClock:
    """How long a job has run, and for how long something of it was broken; wall-clock seconds.

    Invariant: ``interrupted_s`` never falls.
    """

    began_at: float
    now: float = 0.0
    interrupted_s: float = 0.0
    settled_s: float = 0.0  # of what is before ``settled_until``
    settled_until: float = 0.0

    @property
    def wall_s(self) -> float:
        """Return how long the job has run."""
        return max(0.0, self.now - self.began_at)

    def at(self, now: float, spans: Iterable[tuple[float, float | None]]) -> JobClock:
        """Return the clock at ``now``; ``spans``: from when until when incidents were open, None is now."""
        now = max(now, self.now)
        floor = max(self.settled_until, self.began_at)
        bounded = [(max(since, floor), min(now if until is None else until, now)) for since, until in spans]
        union = _union(bounded)
        settle = max(floor, now - LATE_S)
        settled = self.settled_s + sum(max(0.0, min(until, settle) - since) for since, until in union)
        total = self.settled_s + sum(until - since for since, until in union)
        return replace(
            self,
            now=now,
            interrupted_s=max(self.interrupted_s, total),
            settled_s=settled,
            settled_until=settle,
        )


@dataclass(slots=True)
class Loss:
    """A node that goes or is gone, until its actors have found places; ``by``: when that is given up."""

    incident: Incident
    gone: bool
    by: float
    waiting: set[str] = field(default_factory=set)
    victims: dict[str, str] = field(default_factory=dict)  # actor -> class
    dead: int = 0


@dataclass(slots=True)
class JobState:
    """All that is known of one job. Times are wall-clock seconds.

    Invariants: ``actors`` holds no dead one, and of each its last process; ``loops`` only such as restarted
    lately; everything else is bounded too.
    """

    job_id: str
    clock: JobClock
    policy: SupervisorPolicy = field(default_factory=SupervisorPolicy)
    restored: bool = False  # from the memory of an earlier process: what happened meanwhile is news
    known_until: float = float("inf")  # when that process saved it
    table_read: bool = False
    actors: dict[str, ActorSeen] = field(default_factory=dict)
    dead: int = 0
    restarts_known: dict[str, int] = field(default_factory=dict)  # of actors that are not met again yet
    lately_dead: deque[ActorSeen] = field(default_factory=lambda: deque(maxlen=256))
    crashes: Crashes = field(default_factory=Crashes)  # that count against the budget of the job
    spent_at: float | None = None  # since when the budget is spent
    loops: dict[str, Crashes] = field(default_factory=dict)  # of actors that restarted lately
    stopping: dict[str, Incident] = field(default_factory=dict)  # asked for, and not answered yet
    loop_incidents: OrderedDict[str, bool] = field(default_factory=OrderedDict)  # actor -> was it stopped
    nodes: dict[str, str] = field(default_factory=dict)  # the living ones, with their addresses
    draining: dict[str, float] = field(default_factory=dict)
    gone: OrderedDict[str, float] = field(default_factory=OrderedDict)  # the dead ones that were alive
    losses: dict[str, Loss] = field(default_factory=dict)
    histories: dict[str, NodeHistory] = field(default_factory=dict)
    quarantined: dict[str, Quarantine] = field(default_factory=dict)
    agents: tuple[int, int] = (0, 0)
    stories: Stories = field(default_factory=Stories)
    counted: OrderedDict[str, None] = field(default_factory=OrderedDict)  # incidents of counted stories
    totals: Counter[tuple[str, str]] = field(default_factory=Counter)  # stories by kind and scope
    events: Counter[str] = field(default_factory=Counter)
    before: tuple[JobClock, Counter[tuple[str, str]]] | None = None  # what earlier processes counted
    over: bool = False

    @property
    def budget_left(self) -> float:
        """Return the share of the restart budget that is left, from 0 to 1; 1 where there is none."""
        policy = self.policy.budget
        return self.crashes.left(policy.for_actors(len(self.actors)), self.clock.now) if policy else 1.0

    def count_settled(self, *, all_of_them: bool = False) -> None:
        """Count stories that have had time to find their cause; each once, also if it grows later."""
        for story in self.stories.all():
            settled = all_of_them or self.clock.now - story.began_at >= SETTLED_S
            if settled and not any(one in self.counted for one in story.incidents):
                self.totals[story.kind, story.scope] += 1
            if settled:
                self.counted.update(dict.fromkeys(story.incidents))
        while len(self.counted) > _COUNTED:
            self.counted.popitem(last=False)

    def reading(self) -> JobReading:
        """Return the numbers of now; totals without those that earlier processes have shown."""
        clock, totals = self.before or (JobClock(began_at=0.0), Counter())
        up, missing = self.agents
        return JobReading(
            wall_s=max(0.0, self.clock.wall_s - clock.wall_s),
            interrupted_s=max(0.0, self.clock.interrupted_s - clock.interrupted_s),
            budget_left=self.budget_left,
            stories={key: count - totals[key] for key, count in self.totals.items()},
            stories_open=len(self.open_stories()),
            actors=self.actors_by_state(),
            crash_loops=sum(self.loop_incidents.values()),
            nodes=self.nodes_by_state(),
            agents={"up": up, "missing": missing},
            events=dict(self.events),
        )

    def open_stories(self) -> list[Story]:
        """Return the stories that are not over."""
        return [story for story in self.stories.all() if story.open]

    def shown(self) -> dict[str, object]:
        """Return what people and other programs are told, in plain JSON types."""
        return {
            "job_id": self.job_id,
            "over": self.over,
            "wall_s": self.clock.wall_s,
            "interrupted_s": self.clock.interrupted_s,
            "budget_left": self.budget_left,
            "actors": dict(self.actors_by_state()),
            "crash_loops": dict(self.loop_incidents),
            "nodes": {node: self._node_state(node) for node in self.nodes},
            "quarantined": {node: asdict(one) for node, one in self.quarantined.items()},
            "stories": [
                {**asdict(one), "incidents": list(one.incidents[:100])} for one in self.stories.all()[-100:]
            ],
        }

    def actors_by_state(self) -> Mapping[str, int]:
        """Return how many actors there are in each state."""
        counted = Counter(actor.state.value for actor in self.actors.values())
        return {**{one.value: 0 for one in ActorState}, **counted, ActorState.DEAD.value: self.dead}

    def nodes_by_state(self) -> Mapping[str, int]:
        """Return how many nodes there are in each state; each is in one."""
        counted = Counter(self._node_state(node) for node in self.nodes)
        zeros = dict.fromkeys(("alive", "draining", "quarantined"), 0)
        return {**zeros, **counted, "dead": len(self.gone)}

    def _node_state(self, node: str) -> str:
        if node in self.draining:
            return "draining"
        return "quarantined" if node in self.quarantined else "alive"


def begin(job_id: str, began_at: float, policy: SupervisorPolicy | None = None) -> JobState:
    """Return what is known of a job of which nothing is known yet."""
    clock = JobClock(began_at=began_at, now=began_at)
    return JobState(job_id, clock, policy or SupervisorPolicy())


def _union(spans: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the same time as spans that do not overlap."""
    apart: list[tuple[float, float]] = []
    for since, until in sorted(span for span in spans if span[1] > span[0]):
        if apart and since <= apart[-1][1]:
            apart[-1] = (apart[-1][0], max(apart[-1][1], until))
        else:
            apart.append((since, until))
    return apart
