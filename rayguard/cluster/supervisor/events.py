"""What the supervisor of a job hears, and what it has done: plain values.

Who says it: Ray's control process (``rayguard.cluster.supervisor.gcs_events``), the nodes' agents
(``rayguard.cluster.supervisor.job_supervisor``). What follows from it:
``rayguard.cluster.supervisor.job_machine``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rayguard.recovery.incident import Incident


class ActorState(str, Enum):
    """As Ray has it; what waits for its dependencies or a place is pending."""

    PENDING = "pending"
    ALIVE = "alive"
    RESTARTING = "restarting"
    DEAD = "dead"


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorSeen:
    """One row of Ray's table of actors. ``at`` is the wall clock here, in seconds.

    ``node`` and ``worker`` are those of its process; of a restarting one, of the last. Empty where this row
    does not have them (a pushed row has less than a read one).
    """

    actor_id: str
    state: ActorState
    at: float
    restarts: int = 0
    class_name: str = ""
    node: str = ""
    worker: str = ""
    previous_worker: str = ""
    wished: bool = False  # it is dead because somebody wanted it so, or because its owner ended
    why: str = ""  # Ray's word on its death


@dataclass(frozen=True, slots=True, kw_only=True)
class DeathReported:
    """How Ray says that a process ended, whose actor it has started again or given up."""

    actor_id: str
    at: float
    exit: str = ""  # of WorkerExitType, empty when Ray no longer knows
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRead:
    """All actors of the job, after a (new) subscription and from time to time: a lost push is made up for."""

    actors: tuple[ActorSeen, ...]
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSeen:
    """A node that is there, or is gone: ``expected`` if it ended in order, and when, if Ray says so."""

    node: str
    alive: bool
    at: float
    ended_at: float = 0.0
    address: str = ""
    expected: bool = False
    preempted: bool = False
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodesDraining:
    """The nodes that are told to go, with their deadlines (wall clock, seconds; 0 is none)."""

    deadlines: Mapping[str, float]
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalRecords:
    """Records of incidents from a node's journal."""

    incidents: tuple[Incident, ...]
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped:
    """What came of ``StopActor``: ``done``, or why it was left alone."""

    actor_id: str
    at: float
    done: bool
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """Time went on. ``agents``: how many nodes have one that answers, and how many have none."""

    at: float
    agents: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOver:
    """Ray says that the job has ended."""

    at: float


OfRay: TypeAlias = "ActorSeen | DeathReported | TableRead | NodeSeen | NodesDraining | JobOver"
Event: TypeAlias = "OfRay | JournalRecords | Stopped | Tick"

# What metrics call them.
KINDS: Mapping[type, str] = MappingProxyType(
    {
        ActorSeen: "actor",
        DeathReported: "death",
        TableRead: "table",
        Stopped: "stopped",
        NodeSeen: "node",
        NodesDraining: "draining",
        JournalRecords: "incidents",
        Tick: "tick",
        JobOver: "job_over",
    }
)


@dataclass(frozen=True, slots=True)
class AskDeath:
    """Ask Ray how a process of an actor ended; the answer is a ``DeathReported``."""

    actor_id: str
    worker: str


@dataclass(frozen=True, slots=True)
class WriteIncident:
    """Write into the journal of this node."""

    incident: Incident


@dataclass(frozen=True, slots=True)
class StopActor:
    """End an actor for good if it is rayguard that restores it; the answer is a ``Stopped``."""

    actor_id: str


@dataclass(frozen=True, slots=True)
class QuarantineNode:
    """Let everybody know that a node gets no work until then."""

    node: str
    until: float
    why: str


@dataclass(frozen=True, slots=True)
class Readmit:
    """Let everybody know that a node may work again."""

    node: str


@dataclass(frozen=True, slots=True)
class Log:
    """Say something in the supervisor's log that is no incident."""

    text: str


Action: TypeAlias = "AskDeath | WriteIncident | StopActor | QuarantineNode | Readmit | Log"
