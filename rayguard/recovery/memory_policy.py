"""What the guard may do about memory: one frozen value, with a default that is right."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, get_args

from rayguard.errors import ConfigError
from rayguard.options import explained
from rayguard.recovery.budget import RestartBudget

if TYPE_CHECKING:
    from rayguard.memory.pressure import Thresholds

Recycle = Literal["state", "stateless"]
_SHORTEST_S = 0.05


@explained
@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPolicy:
    """When memory is short, and what may be done about it. Cheap relief always comes before costly relief.

    ``node``: shares of the memory of the node (or container) at which pressure is soft and hard; None: just
    below the share at which Ray begins to kill. ``process_limit``: bytes that this process may have
    of its own, its engine's processes apart; None: no limit but the node's. ``horizon_steps``: relief begins
    when a forecast says that memory runs out within so many steps; ``horizon_s``: the same in seconds, where
    there are no steps.
    ``recycle``: how a growing process may be replaced at the end of a call. ``"state"``: only if its class
    has ``state_dict()`` and ``load_state_dict(state)``, by which its state moves to the next process.
    ``"stateless"``: it has no state but what ``__init__`` makes. None: never.
    ``recycle_budget``: how often that may happen; and, counted apart, how often its engine may be replaced
    by a new one because it has grown.
    ``step``: name of the method whose end is a step; by default the end of every call.
    ``interval_s``: seconds between two looks at memory.
    """

    node: Thresholds | None = None
    process_limit: int | None = None
    horizon_s: float = 60.0
    horizon_steps: int = 3
    recycle: Recycle | None = "state"
    recycle_budget: RestartBudget = field(
        default_factory=lambda: RestartBudget(max_restarts=6, within_s=3600.0)
    )
    step: str | None = None
    interval_s: float = 1.0

    def __post_init__(self) -> None:
        """Refuse a policy that contradicts itself."""
        known = get_args(Recycle)
        if self.recycle is not None and self.recycle not in known:
            raise ConfigError(
                f"MemoryPolicy.recycle must be {known[0]!r}, {known[1]!r} or None, got {self.recycle!r}"
            )
        if self.process_limit is not None and not self.process_limit > 0:
            raise ConfigError(
                f"MemoryPolicy.process_limit must be more than 0 bytes, got {self.process_limit}"
            )
        if not self.horizon_s >= 0 or self.horizon_steps < 0:
            raise ConfigError(
                "MemoryPolicy.horizon_s and horizon_steps must be 0 or more, "
                f"got {self.horizon_s} and {self.horizon_steps}"
            )
        if not self.interval_s >= _SHORTEST_S:
            raise ConfigError(
                f"MemoryPolicy.interval_s must be {_SHORTEST_S} seconds or more, got {self.interval_s}"
            )
        if self.step is not None and not self.step.isidentifier():
            raise ConfigError(f"MemoryPolicy.step must be the name of a method, got {self.step!r}")
