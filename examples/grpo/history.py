"""What happened so far, as plain values: the loop writes it; view, picture, verdict and report read it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from examples.grpo.samples import Deliveries

if TYPE_CHECKING:
    from examples.grpo.memory import ProcessMemory
    from rayguard.recovery.incident import Incident
    from rayguard.testing.injector import FiredFault


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of training; ``started_at`` and ``ended_at`` in wall-clock seconds."""

    number: int
    started_at: float
    ended_at: float
    tokens: int
    reward: float
    logp_diff: float

    @property
    def throughput(self) -> float:
        """Generated tokens per second, training and recovery included."""
        return self.tokens / (self.ended_at - self.started_at)


@dataclass(frozen=True, slots=True, kw_only=True)
class KilledRank:
    """A rank of a gang that was killed on purpose; ``at`` in wall-clock seconds."""

    step: int
    rank: int
    pid: int
    at: float


@dataclass(slots=True)
class RolloutState:
    """What one rollout last said about itself."""

    actor_id: str = ""
    epoch: int = 0
    rung: int = 0
    settings: tuple[str, ...] = ()
    state: str = "starting"
    weight_version: str = ""


@dataclass(slots=True)
class History:
    """The run so far. ``fired`` and ``incidents`` are in the order of time."""

    steps_planned: int
    started_at: float
    guarded: bool
    doing: str = "starting"
    ready_at: float | None = None
    ended_at: float | None = None
    failure: str = ""
    steps: list[Step] = field(default_factory=list)
    fired: list[FiredFault] = field(default_factory=list)
    gang: bool = False  # whether the trainer is one
    killed_ranks: list[KilledRank] = field(default_factory=list)
    never_fired: tuple[str, ...] = ()
    incidents: list[Incident] = field(default_factory=list)
    rollouts: list[RolloutState] = field(default_factory=list)
    deliveries: Deliveries = field(default_factory=Deliveries)
    memory: list[ProcessMemory] = field(default_factory=list)  # at the end, each life of each guarded actor
