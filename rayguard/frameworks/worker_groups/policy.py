"""What may be done for a group of workers, and how long each step may take: one frozen value."""

from __future__ import annotations

from dataclasses import dataclass, field

from rayguard.errors import ConfigError
from rayguard.options import explained
from rayguard.recovery.budget import RestartBudget


@explained
@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPolicy:
    """How a group is recovered; the defaults are right for training.

    ``restarts``: how often one group may be begun anew in all. ``repeats``: how often one call is made again;
    what ends the workers oftener is likely to be the call's own doing.
    ``snapshot_ratio``: the share of a run's time that snapshots may take; 0: none are made.
    ``memory_ratio``: the share of the node's free memory that a snapshot may need.
    ``kept_bytes``: how much is kept, in the object store, of what updates were called with since the last
    snapshot or checkpoint; a fifth of the node's store at most.
    ``ask_s``: how long a group is asked who died after an error, ``broken_s`` after one that speaks of it.
    ``end_s``: until all processes have ended; ``rebuild_s``: until new ones are where the old ones were;
    ``snapshot_s``: until a snapshot is made.
    """

    restarts: RestartBudget = field(default_factory=lambda: RestartBudget(max_restarts=20, within_s=3_600.0))
    repeats: int = 2
    snapshot_ratio: float = 0.01
    memory_ratio: float = 0.25
    kept_bytes: int = 8 << 30
    ask_s: float = 1.0
    broken_s: float = 15.0
    end_s: float = 60.0
    rebuild_s: float = 1_800.0
    snapshot_s: float = 600.0

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        if not isinstance(self.restarts, RestartBudget):
            raise ConfigError(f"GroupPolicy.restarts must be a RestartBudget, got {self.restarts!r}")
        for name in ("repeats", "kept_bytes"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 0:
                raise ConfigError(f"GroupPolicy.{name} must be a whole number from 0, got {value!r}")
        for name in ("snapshot_ratio", "memory_ratio"):
            value = getattr(self, name)
            if not _is_number(value) or not 0 <= value <= 1:
                raise ConfigError(f"GroupPolicy.{name} must be a share from 0 to 1, got {value!r}")
        for name in ("ask_s", "broken_s", "end_s", "rebuild_s", "snapshot_s"):
            value = getattr(self, name)
            if not _is_number(value) or not value > 0:
                raise ConfigError(f"GroupPolicy.{name} must be more than 0 seconds, got {value!r}")


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
