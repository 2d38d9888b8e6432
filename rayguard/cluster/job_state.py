"""What the supervisor of a job knows. What follows from an event is ``rayguard.cluster.supervisor_state``.

Keeping it beyond the process is ``rayguard.cluster.supervisor_memory``.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rayguard.cluster.job_budget import JobBudgetPolicy, Spending
from rayguard.cluster.job_clock import JobClock
from rayguard.cluster.stories import Stories
from rayguard.cluster.supervisor_events import ActorState
from rayguard.cluster.supervisor_policy import SupervisorPolicy
from rayguard.metrics.job_instruments import JobReading

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rayguard.cluster.crash_loop import Restart
    from rayguard.cluster.quarantine import NodeHistory, Quarantine
    from rayguard.cluster.stories import Story
    from rayguard.recovery.incident import Incident

# After this a story is counted under its kind: a cause may be told later than what followed from it.
SETTLED_S = 15.0
_COUNTED = 4_096


@dataclass(frozen=True, slots=True)
class Actor:
    """One living actor of the job. ``node`` and ``worker`` are those of its last process."""

    state: ActorState
    class_name: str = ""
    node: str = ""
    worker: str = ""
    restarts: int = 0


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

    Invariants: ``actors`` holds no dead one; ``loops`` only such as restarted lately; everything else is
    bounded too.
    """

    job_id: str
    clock: JobClock
    policy: SupervisorPolicy = field(default_factory=SupervisorPolicy)
    restored: bool = False  # from the memory of an earlier process: what happened meanwhile is news
    known_until: float = float("inf")  # when that process saved it
    table_read: bool = False
    actors: dict[str, Actor] = field(default_factory=dict)
    dead: int = 0
    restarts_known: dict[str, int] = field(default_factory=dict)  # of actors that are not met again yet
    lately_dead: deque[tuple[float, str, Actor]] = field(default_factory=lambda: deque(maxlen=256))
    spending: Spending = field(default_factory=lambda: Spending(JobBudgetPolicy()))
    spent_at: float | None = None  # since when the budget is spent
    loops: dict[str, tuple[Restart, ...]] = field(default_factory=dict)
    stopping: dict[str, Incident] = field(default_factory=dict)  # asked for, and not answered yet
    loop_incidents: OrderedDict[str, bool] = field(default_factory=OrderedDict)  # actor -> was it stopped
    nodes: dict[str, str] = field(default_factory=dict)  # the living ones, with their addresses
    draining: dict[str, float] = field(default_factory=dict)
    gone: OrderedDict[str, float] = field(default_factory=OrderedDict)  # the dead ones that were alive
    losses: dict[str, Loss] = field(default_factory=dict)
    histories: dict[str, NodeHistory] = field(default_factory=dict)
    shunned: dict[str, Quarantine] = field(default_factory=dict)
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
        return self.spending.left(len(self.actors), self.clock.now) if self.policy.budget else 1.0

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

    def shown(self) -> dict[str, Any]:
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
            "quarantined": {node: {"until": one.until, "why": one.why} for node, one in self.shunned.items()},
            "stories": [story_shown(story) for story in self.stories.all()[-100:]],
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
        return "quarantined" if node in self.shunned else "alive"


def story_shown(story: Story) -> dict[str, Any]:
    """Return a story in plain JSON types."""
    return {
        "id": story.id,
        "kind": story.kind,
        "scope": story.scope,
        "cause": story.cause,
        "advice": story.advice,
        "job_id": story.job_id,
        "node": story.node,
        "actors": story.actors,
        "incidents": list(story.incidents[:100]),
        "began_at": story.began_at,
        "ended_at": story.ended_at,
        "sentence": story.sentence(),
    }


def begin(job_id: str, began_at: float, policy: SupervisorPolicy | None = None) -> JobState:
    """Return what is known of a job of which nothing is known yet."""
    policy = policy or SupervisorPolicy()
    return JobState(
        job_id,
        JobClock(began_at=began_at, now=began_at),
        policy,
        spending=Spending(policy.budget or JobBudgetPolicy()),
    )
