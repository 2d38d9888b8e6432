"""The user's choices for a pool: one frozen value, with a default that is right."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from rayguard.errors import ConfigError
from rayguard.options import explained
from rayguard.recovery.budget import RestartBudget

if TYPE_CHECKING:
    from os import PathLike


@explained
@dataclass(frozen=True, slots=True, kw_only=True)
class PoolPolicy:
    """What a pool may do, and how long it may wait. What an actor may do with its engine is ``GuardPolicy``.

    ``max_weight_lag``: how many weight updates an engine may be behind and still get requests. With 0,
    samples are made by the current weights alone, and ``update_weights`` waits for what is running. With 1
    and more (asynchronous training) running requests go on with the new weights, and their samples tell which
    made which tokens.
    ``queue_limit``: requests that may wait for an engine; who asks for more waits.
    ``quarantine_after``: actors a request may be running on when they die before it is given up.
    ``progress``: show a progress bar; None: on a terminal.
    ``start_s``: until an actor and its engine are there. ``weights_s``: one weight update of all engines.
    ``drain_s``: for an actor that is to go, to finish what it has.
    ``replace``: how often each of the pool's engines may be hired anew after its actor is dead for good (a
    pool of 8 may hire 24 within an hour). The first comes at once, the next ones after 1, 4, ... 60 s; past
    that the pool goes on with fewer, and ``resize`` hires anew. 0 restarts: never.
    ``preload``: once an engine serves, one process on its node imports vLLM as well (460 MB; at a lower
    priority), and next lives of the pool's actors are forked from it: after a death nobody
    waits for that import. Not with a Python of its own in ``runtime_env`` (pip, uv, conda, a container).
    ``spares``: workers of Ray that wait on each node of the pool with vLLM imported and no engine: the next
    life of an actor begins in one. 25 MB each beside what they share; they end with the job.
    ``hang_stopped_s`` / ``hang_busy_s``: silence after which an actor is ended whose process is stopped /
    is running (a blocked event loop: its engine works on meanwhile).
    ``ledger``: where requests with ids of the caller's, their tokens and their answers are kept for the next
    life of the pool's owner. None: in an actor that Ray restarts, a file on its node; elsewhere none. False:
    none. A name or a path: there. After the owner's death the same call with the same ids goes on with it.
    The rollout actors die with their owner (Ray's rule); those that its next life makes go on with their
    engines. A node that is lost takes the ledger along, and the call begins anew.
    """

    max_weight_lag: int = 0
    queue_limit: int = 65_536
    quarantine_after: int = 3
    progress: bool | None = None
    start_s: float = 1_800.0
    weights_s: float = 300.0
    drain_s: float = 300.0
    replace: RestartBudget = field(default_factory=lambda: RestartBudget(max_restarts=3, within_s=3_600.0))
    preload: bool = True
    spares: int = 0
    hang_stopped_s: float = 2.0
    hang_busy_s: float = 300.0
    ledger: str | PathLike[str] | Literal[False] | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        least_of = {"max_weight_lag": 0, "queue_limit": 1, "quarantine_after": 1, "spares": 0}
        for name, least in least_of.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ConfigError(f"PoolPolicy.{name} must be a whole number from {least}, got {value!r}")
        self._check_times()
        for name, kind in (("preload", bool), ("replace", RestartBudget)):
            if not isinstance(value := getattr(self, name), kind):
                raise ConfigError(f"PoolPolicy.{name} must be a {kind.__name__}, got {value!r}")

    def _check_times(self) -> None:
        for name in ("start_s", "weights_s", "hang_stopped_s", "hang_busy_s"):
            if not (value := getattr(self, name)) > 0:
                raise ConfigError(f"PoolPolicy.{name} must be more than 0 seconds, got {value!r}")
        if not self.drain_s >= 0:
            raise ConfigError(f"PoolPolicy.drain_s must be 0 seconds or more, got {self.drain_s!r}")
        if self.hang_stopped_s > self.hang_busy_s:
            raise ConfigError("PoolPolicy needs hang_stopped_s <= hang_busy_s")
