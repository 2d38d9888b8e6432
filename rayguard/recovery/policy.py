"""The user's choices: one frozen value, with a default that is right.

``policy`` alone is the trained model in RL; this one is the *guard* policy.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

from rayguard.errors import ConfigError
from rayguard.options import explained
from rayguard.recovery.budget import RestartBudget
from rayguard.recovery.ladder import Ladder
from rayguard.recovery.memory_policy import MemoryPolicy

Standby = Literal["process", "engine"]
_SMALL_STEPS_S = 60.0  # of one attempt: evidence, force, waiting for device memory


@explained
@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotPolicy:
    """When an actor that can say its state is due to have it kept: at the end of a call, after both of these.

    ``every_calls``: so many calls have ended since it was kept last, the one that ends now among them.
    ``every_s``: so many seconds have passed since then. A death loses what ended since, and the next life
    tells how many calls that were. By default nothing is lost: the state is kept after each call, which costs
    about a copy of its memory.
    """

    every_calls: int = 1
    every_s: float = 0.0

    def __post_init__(self) -> None:
        """Refuse what can never be due."""
        if self.every_calls < 1:
            raise ConfigError(f"SnapshotPolicy.every_calls must be 1 or more, got {self.every_calls}")
        if not 0 <= self.every_s < float("inf"):
            raise ConfigError(f"SnapshotPolicy.every_s must be 0 or more seconds, got {self.every_s}")

    def due(self, calls: int, seconds: float) -> bool:
        """Say whether to keep the state, ``calls`` and ``seconds`` after it was kept last."""
        return calls >= self.every_calls and seconds >= self.every_s


@explained
@dataclass(frozen=True, slots=True, kw_only=True)
class GuardPolicy:
    """What the guard may do, and how long it may wait.

    ``call_retries``: how often a failing call is repeated in the same process (transient faults only).
    ``quarantine_after``: engines a request may be running on when they die before it is given up.
    ``standby``: what waits beside the engine that serves. "process": a process with vLLM imported (about
    450 MB of its own), from which an engine core starts in 2 s instead of 18 s. "engine": besides, a second
    engine, built, loaded and at the current weights, which takes over within a second; it needs as much host
    and device memory as the first. None: nothing.
    ``adopt_within_s``: seconds for which a vLLM engine outlives its actor while Ray starts the actor again,
    so that the next life goes on with it instead of building another one. It must have been forked from the
    process of ``standby``. 0: engines end with their actors.
    ``probation_s``: fault-free seconds after which one safe setting is taken back; None keeps all.
    ``build_deadline_s``: one engine start, model loading included.
    ``teardown_deadline_s``: polite part of a teardown; force follows.
    ``weights_deadline_s``: one weight push, read-back included.
    ``canary_tolerance``: nats by which log-probabilities of the same greedy tokens may differ between
    engines with the same weights (other safe settings, batches, GPUs). After each push, an engine that can
    answer cheaply generates eight tokens, and serves only if they agree with what was answered before with
    these weights. None: no such canaries.
    ``audit``: share of the greedy requests (temperature 0) that an engine answers once more, past its prefix
    cache; 0.01 is one of a hundred. Another answer, where no two tokens were as likely within
    ``canary_tolerance`` (0.5 where that is None), is an incident, and the engine is replaced. It costs an
    ``AsyncLLM`` that share of its generation; an ``LLM`` is asked only while nobody else does, and gives way
    to who comes. 0: none.
    ``check_logits``: a request of vLLM's whose logits are NaN or infinite ends with an error
    (``finish_reason="error"``, the reason in ``stop_reason``) instead of going on from token 0; it is an
    incident, and counted. Costs one reduction of the logits a step. Not with speculative decoding, nor in an
    engine that runs in this very process.
    ``snapshot``: how often the state of an actor that can say it is kept; by default after each call.
    ``memory``: when memory counts as short and what may be done about it; None: it is not watched. By default
    no process is recycled for it (``MemoryPolicy(recycle=...)``).
    ``flight_recorder``: each guarded actor records its last minutes, for the time after its death (256 KiB on
    disk, less than 0.1 % of a core).
    ``hang_stopped_s`` / ``hang_idle_s`` / ``hang_busy_s``: silence that is a hang when the engine's
    processes are stopped / burn no CPU / are computing. Once the pace of its decoding is known, an engine
    that computes while it has only tokens to make gets ``hang_idle_s`` too, or ten times its usual gap.
    """

    ladder: Ladder = field(default_factory=Ladder)
    engine_budget: RestartBudget = field(
        default_factory=lambda: RestartBudget(max_restarts=6, within_s=600.0)
    )
    process_budget: RestartBudget = field(
        default_factory=lambda: RestartBudget(max_restarts=2, within_s=1800.0)
    )
    call_retries: int = 2
    quarantine_after: int = 3
    standby: Standby | None = "process"
    adopt_within_s: float = 30.0
    probation_s: float | None = 1800.0
    build_deadline_s: float = 900.0
    teardown_deadline_s: float = 5.0
    weights_deadline_s: float = 120.0
    flight_recorder: bool = True
    snapshot: SnapshotPolicy = field(default_factory=SnapshotPolicy)
    memory: MemoryPolicy | None = field(default_factory=lambda: MemoryPolicy(recycle=None))
    canary_tolerance: float | None = 0.5
    audit: float = 0.0
    check_logits: bool = True
    hang_stopped_s: float = 2.0
    hang_idle_s: float = 8.0
    hang_busy_s: float = 300.0

    @property
    def patience_s(self) -> float:
        """Longer than any recovery: each step of one has its own deadline, and the budget ends it."""
        weights = 6 * self.weights_deadline_s  # fetched, pushed and heard twice at most, taken over
        attempt = self.build_deadline_s + weights + self.teardown_deadline_s
        return (self.engine_budget.max_restarts + 1) * (attempt + _SMALL_STEPS_S)

    def __post_init__(self) -> None:
        """Refuse a policy that contradicts itself."""
        deadlines = ("build_deadline_s", "teardown_deadline_s", "weights_deadline_s", "hang_stopped_s")
        for name in deadlines:
            if not getattr(self, name) > 0:
                raise ConfigError(
                    f"GuardPolicy.{name} must be more than 0 seconds, got {getattr(self, name)}"
                )
        _check_standby(self.standby)
        _check_share(self.audit)
        _check_seconds("adopt_within_s", self.adopt_within_s)
        _check_parts(self.memory, self.snapshot)
        if self.call_retries < 0:
            raise ConfigError(f"GuardPolicy.call_retries must be 0 or more, got {self.call_retries}")
        if self.quarantine_after < 1:
            raise ConfigError(f"GuardPolicy.quarantine_after must be 1 or more, got {self.quarantine_after}")
        for name in ("probation_s", "canary_tolerance"):
            _check_positive_or_none(name, getattr(self, name))
        if not self.hang_stopped_s <= self.hang_idle_s <= self.hang_busy_s:
            raise ConfigError(
                "GuardPolicy needs hang_stopped_s <= hang_idle_s <= hang_busy_s: a stopped process is the "
                f"surest sign of a hang, a computing one the weakest; got {self.hang_stopped_s}, "
                f"{self.hang_idle_s}, {self.hang_busy_s}"
            )
        if self.quarantine_after > self.engine_budget.max_restarts + 1:
            raise ConfigError(
                f"GuardPolicy.quarantine_after={self.quarantine_after} can never be reached with an "
                f"engine_budget of {self.engine_budget.max_restarts} restarts: raise one or lower the other"
            )


def _check_positive_or_none(name: str, value: float | None) -> None:
    if value is not None and not value > 0:
        raise ConfigError(f"GuardPolicy.{name} must be more than 0 or None, got {value}")


def _check_parts(memory: object, snapshot: object) -> None:
    if memory is not None and not isinstance(memory, MemoryPolicy):
        raise ConfigError(f"GuardPolicy.memory must be a rayguard.MemoryPolicy or None, got {memory!r}")
    if not isinstance(snapshot, SnapshotPolicy):
        raise ConfigError(f"GuardPolicy.snapshot must be a rayguard.SnapshotPolicy, got {snapshot!r}")


def _check_seconds(name: str, value: float) -> None:
    if not 0 <= value < float("inf"):
        raise ConfigError(f"GuardPolicy.{name} must be 0 or more seconds, got {value}")


def _check_share(audit: float) -> None:
    if not 0 <= audit <= 1:
        raise ConfigError(f"GuardPolicy.audit must be a share from 0 to 1, got {audit}")


def _check_standby(standby: object) -> None:
    known = get_args(Standby)
    if standby is not None and standby not in known:
        raise ConfigError(f"GuardPolicy.standby must be {known[0]!r}, {known[1]!r} or None, got {standby!r}")
