"""The user's choices: one frozen value, with a default that is right.

``policy`` alone is the trained model in RL; this one is the *guard* policy.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from rayguard.errors import ConfigError
from rayguard.recovery.budget import RestartBudget
from rayguard.recovery.ladder import Ladder

_SMALL_STEPS_S = 60.0  # of one attempt: evidence, force, waiting for device memory


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardPolicy:
    """What the guard may do, and how long it may wait.

    ``call_retries``: how often a failing call is repeated in the same process (transient faults only).
    ``quarantine_after``: engines a request may be running on when they die before it is given up.
    ``prefork``: keep a process with vLLM imported (about 450 MB of its own), from which an engine core
    starts in 2 s instead of 18 s.
    ``probation_s``: fault-free seconds after which one safe setting is taken back; None keeps all.
    ``build_deadline_s``: one engine start, model loading included.
    ``teardown_deadline_s``: polite part of a teardown; force follows.
    ``weights_deadline_s``: one weight push, read-back included.
    ``hang_stopped_s`` / ``hang_idle_s`` / ``hang_busy_s``: silence that is a hang when the engine's
    processes are stopped / burn no CPU / are computing.
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
    prefork: bool = True
    probation_s: float | None = 1800.0
    build_deadline_s: float = 900.0
    teardown_deadline_s: float = 5.0
    weights_deadline_s: float = 120.0
    hang_stopped_s: float = 2.0
    hang_idle_s: float = 8.0
    hang_busy_s: float = 300.0

    @property
    def patience_s(self) -> float:
        """Longer than any recovery: each step of one has its own deadline, and the budget ends it."""
        attempt = self.build_deadline_s + 2 * self.weights_deadline_s + self.teardown_deadline_s
        return (self.engine_budget.max_restarts + 1) * (attempt + _SMALL_STEPS_S)

    def __post_init__(self) -> None:
        """Refuse a policy that contradicts itself."""
        deadlines = ("build_deadline_s", "teardown_deadline_s", "weights_deadline_s", "hang_stopped_s")
        for name in deadlines:
            if not getattr(self, name) > 0:
                raise ConfigError(
                    f"GuardPolicy.{name} must be more than 0 seconds, got {getattr(self, name)}"
                )
        if self.call_retries < 0:
            raise ConfigError(f"GuardPolicy.call_retries must be 0 or more, got {self.call_retries}")
        if self.quarantine_after < 1:
            raise ConfigError(f"GuardPolicy.quarantine_after must be 1 or more, got {self.quarantine_after}")
        if self.probation_s is not None and not self.probation_s > 0:
            raise ConfigError(f"GuardPolicy.probation_s must be more than 0 or None, got {self.probation_s}")
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
