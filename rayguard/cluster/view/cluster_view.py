"""What the screens of a cluster show, as one value: nodes, processes, engines, jobs, stories, incidents.

Pure values. Made by ``rayguard.cluster.view.answers`` of what the cluster said; how they look is
``rayguard.cli.cluster_views``.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Any

from rayguard.recovery.tally import EngineTally

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rayguard.cluster.supervisor.stories import Story
    from rayguard.recovery.incident import Incident


HOT = 0.9  # of its memory: near to where Ray kills


class NodeState(str, Enum):
    """What can be expected of a node. The worst one counts."""

    DEAD = "dead"
    QUARANTINED = "quarantined"
    DRAINING = "draining"
    ALIVE = "alive"


class Answers(str, Enum):
    """Whether an agent or a supervisor is there."""

    UP = "up"
    SILENT = "no answer"
    MISSING = "missing"
    NONE = ""  # there should be none: the node is dead, the job is over


@dataclass(frozen=True, slots=True, kw_only=True)
class Full:
    """Bytes of something with a limit."""

    used: int
    limit: int

    @property
    def share(self) -> float:
        """How full it is, from 0 to 1; nothing has room for nothing."""
        return self.used / self.limit if self.limit > 0 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    """One node. ``why`` explains a state other than alive, or why the agent does not answer."""

    id: str
    host: str
    address: str = ""
    head: bool = False
    state: NodeState = NodeState.ALIVE
    agent: Answers = Answers.MISSING
    why: str = ""
    version: str = ""
    url: str = ""
    plugin: bool | None = None
    memory: Full | None = None
    store: Full | None = None
    shm: Full | None = None
    device: Full | None = None  # all of them together
    stalled_ratio: float | None = None
    processes: int = 0
    stopped: int = 0

    @property
    def fine(self) -> bool:
        """Say whether nobody needs to look at it."""
        hot = self.memory is not None and self.memory.share >= HOT
        return self.state is NodeState.ALIVE and self.agent is Answers.UP and not self.stopped and not hot


@dataclass(slots=True, kw_only=True)
class EngineView(EngineTally):
    """One engine and its process."""

    node: str
    pid: int
    actor_class: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessView:
    """One Ray worker that has work. ``restarts`` and ``memory_bytes`` are None where nobody says."""

    node: str
    pid: int
    name: str
    job_id: str = ""
    actor_id: str = ""
    guarded: bool = False
    watched: bool = False  # and not guarded
    stopped: bool = False
    restarts: int | None = None
    memory_bytes: int | None = None
    engines: tuple[EngineView, ...] = ()
    last_incident: str = ""

    @property
    def care(self) -> str:
        """What rayguard does for it, in a word."""
        return "guarded" if self.guarded else "watched" if self.watched else "neither"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupView:
    """The processes of one class (or function) in one job. ``largest_bytes`` is that of one of them."""

    name: str
    job_id: str
    processes: int
    guarded: int
    watched: int
    stopped: int
    nodes: int
    restarts: int
    largest_bytes: int
    engines: int
    serving: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    """One job. ``budget_left`` is a share from 0 to 1, None where it has no supervisor that says."""

    id: str
    entrypoint: str = ""
    running: bool = True
    plugin: bool = False
    supervisor: Answers = Answers.MISSING
    budget_left: float | None = None
    open_stories: int = 0
    crash_loops: tuple[str, ...] = ()
    actors: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterView:
    """A cluster at the moment ``at``. Nodes: those with trouble first; stories and incidents: newest last."""

    at: float
    address: str = ""
    nodes: tuple[NodeView, ...] = ()
    processes: tuple[ProcessView, ...] = ()
    jobs: tuple[JobView, ...] = ()
    stories: tuple[Story, ...] = ()
    incidents: tuple[Incident, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def groups(self) -> tuple[GroupView, ...]:
        """The processes by class and job, those with trouble first."""
        members: dict[tuple[str, str], list[ProcessView]] = defaultdict(list)
        for one in self.processes:
            members[one.name, one.job_id].append(one)
        groups = [
            GroupView(
                name=name,
                job_id=job,
                processes=len(those),
                guarded=sum(one.guarded for one in those),
                watched=sum(one.watched for one in those),
                stopped=sum(one.stopped for one in those),
                nodes=len({one.node for one in those}),
                restarts=sum(one.restarts or 0 for one in those),
                largest_bytes=max((one.memory_bytes or 0 for one in those), default=0),
                engines=sum(len(one.engines) for one in those),
                serving=sum(engine.serving for one in those for engine in one.engines),
            )
            for (name, job), those in members.items()
        ]
        return tuple(sorted(groups, key=_trouble_of_group))

    @property
    def engines(self) -> tuple[EngineView, ...]:
        """All engines, those that do not serve first."""
        every = (engine for process in self.processes for engine in process.engines)
        return tuple(sorted(every, key=lambda one: (one.serving, -one.restarts, one.name, one.node)))

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON types, everything that is known."""
        return {**asdict(replace(self, incidents=())), "incidents": [one.to_json() for one in self.incidents]}


def _trouble_of_group(group: GroupView) -> tuple[object, ...]:
    return -group.stopped, group.serving - group.engines, -group.processes, group.name, group.job_id
