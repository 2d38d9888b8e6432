"""The user's choices for a gang: one frozen value, with a default that is right."""

from __future__ import annotations

from dataclasses import dataclass, field
from os import PathLike

from rayguard.errors import ConfigError
from rayguard.options import explained
from rayguard.recovery.budget import RestartBudget

_MOST = {"copies": 1}


@explained
@dataclass(frozen=True, slots=True, kw_only=True)
class GangPolicy:
    """What a gang may do, and how long it may wait.

    ``min_ranks``: where a rank cannot be replaced, the gang goes on with fewer, down to so many; None: it
    never shrinks.
    ``restarts``: how often the gang may be begun anew in all; past that the call ends with ``GaveUpError``.
    ``repeats``: how often one call is made again after a fault. What fails oftener is likely to be the call's
    own doing.
    ``call_s``: how long a call may take. None: learned from the calls of the same method, 15 times their
    median and at least 5 s; where ranks still make progress or compile, and for the first three calls of a
    method, ``first_call_s``.
    ``setup_s``: until all ranks have joined, set up and loaded their state. ``start_s``: until a new rank's
    process is there. ``leave_s``: until a rank has left a collective that was cut off; after that its process
    is ended.
    ``checkpoint``: a folder on a disk that all nodes share: after each ``checkpoint_every`` calls the state
    goes there, the last two are kept, and a new gang begins from the newest complete one. None: no disk.
    ``copies``: on how many other nodes each rank's newest state is copied, in the background: 1 wherever the
    cluster has another node, or 0.
    ``exact``: refuse what makes a gang go on with losses that differ in the last bits (plain DDP).
    """

    min_ranks: int | None = None
    restarts: RestartBudget = field(default_factory=lambda: RestartBudget(max_restarts=20, within_s=3_600.0))
    repeats: int = 2
    call_s: float | None = None
    first_call_s: float = 1_800.0
    setup_s: float = 600.0
    start_s: float = 300.0
    leave_s: float = 2.0
    checkpoint: str | PathLike[str] | None = None
    checkpoint_every: int = 50
    copies: int = 1
    exact: bool = True

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        for name, least in (("min_ranks", 1), ("repeats", 0), ("checkpoint_every", 1), ("copies", 0)):
            value = getattr(self, name)
            if not _whole(value, least, _MOST.get(name)) and (value is not None or name != "min_ranks"):
                most = f" to {_MOST[name]}" if name in _MOST else ""
                raise ConfigError(
                    f"GangPolicy.{name} must be a whole number from {least}{most}, got {value!r}"
                )
        if not isinstance(self.checkpoint, (str, PathLike, type(None))):
            raise ConfigError(f"GangPolicy.checkpoint must be the path of a folder, got {self.checkpoint!r}")
        if not isinstance(self.restarts, RestartBudget):
            raise ConfigError(f"GangPolicy.restarts must be a RestartBudget, got {self.restarts!r}")
        for name in ("call_s", "first_call_s", "setup_s", "start_s", "leave_s"):
            value = getattr(self, name)
            if value is None and name == "call_s":
                continue
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
                raise ConfigError(f"GangPolicy.{name} must be more than 0 seconds, got {value!r}")


def _whole(value: object, least: int, most: int | None) -> bool:
    if not isinstance(value, int) or isinstance(value, bool):
        return False
    return value >= least and (most is None or value <= most)
