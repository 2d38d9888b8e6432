"""How full is too full: OK, SOFT, HARD. Pure; when it *will* be full is ``forecast``.

The node has a limit below its limit: Ray's memory monitor kills a worker once the node is fuller than
``RAY_memory_usage_threshold``. Whoever wants to act before must do so below that.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

from rayguard.errors import ConfigError
from rayguard.memory.reading import Quantity, Reading
from rayguard.options import explained

if TYPE_CHECKING:
    from collections.abc import Mapping

# Ray 2.60: src/ray/common/ray_config_def.h, memory_usage_threshold and memory_monitor_refresh_ms
RAY_KILLS_AT = 0.95
RAY_FILLS_DISK_AT = 0.95  # local_fs_capacity_threshold: no more objects are spilled or created
_BELOW_RAY = 0.03
_SOFT_BELOW_HARD = 0.10


class Pressure(IntEnum):
    """How full something is. Invariant: more bytes in use never mean less pressure."""

    OK = 0
    SOFT = 1  # time for what costs nothing
    HARD = 2  # time for what costs something


@explained
@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """Shares of a limit from which on it is SOFT or HARD, and how far it must fall to be less again.

    Raises ``ConfigError`` for shares that mean nothing. Invariant: slack < soft < hard <= 1, so that each
    level can be left again.
    """

    soft: float = 0.85
    hard: float = 0.95
    slack: float = 0.03  # what keeps a reading that trembles around a threshold from flapping

    def __post_init__(self) -> None:
        """Refuse what could never be reached, never be left, or in the wrong order."""
        for name, share in (("soft", self.soft), ("hard", self.hard), ("slack", self.slack)):
            # NaN fails every comparison, so that it fails this one too
            if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 <= share <= 1:
                raise ConfigError(f"{name} must be a share of the limit between 0 and 1, got {share!r}")
        if not self.soft < self.hard:
            raise ConfigError(f"soft must be below hard, got soft={self.soft} and hard={self.hard}")
        if not self.slack < min(self.soft, self.hard - self.soft):
            raise ConfigError(
                f"slack must be less than soft and less than hard - soft, got slack={self.slack} "
                f"with soft={self.soft} and hard={self.hard}: a level could never be left"
            )

    def level(self, share: float, before: Pressure = Pressure.OK) -> Pressure:
        """Return the level of ``share``: up at a threshold, down only ``slack`` below it."""
        slack = {level: self.slack if before >= level else 0.0 for level in Pressure}
        if share >= self.hard - slack[Pressure.HARD]:
            return Pressure.HARD
        if share >= self.soft - slack[Pressure.SOFT]:
            return Pressure.SOFT
        return Pressure.OK


def below_ray(kills_at: float = RAY_KILLS_AT) -> Thresholds:
    """Return the node's thresholds when Ray's monitor kills at the share ``kills_at`` of it.

    Raises ``ConfigError`` where that leaves no room to act: Ray would kill first.
    """
    if not isinstance(kills_at, (int, float)) or not 0.1 <= kills_at <= 1:  # noqa: PLR2004 - said in the message
        raise ConfigError(
            f"Ray's memory_usage_threshold is {kills_at!r}: to act below it, it must be between 0.1 and 1"
        )
    hard = kills_at - min(_BELOW_RAY, kills_at / 10)
    soft = hard - min(_SOFT_BELOW_HARD, hard / 4)
    return Thresholds(soft=soft, hard=hard, slack=min(0.03, (hard - soft) / 3))


DEFAULTS: Mapping[Quantity, Thresholds] = {
    Quantity.STORE: Thresholds(soft=0.80, hard=0.95),  # when full it spills, and that is slow but no death
    Quantity.DISK: Thresholds(soft=0.85, hard=RAY_FILLS_DISK_AT - 0.03),
}


def defaults(quantity: Quantity) -> Thresholds:
    """Return what suits ``quantity``, where neither the user nor Ray has a say (``below_ray``)."""
    return DEFAULTS.get(quantity, Thresholds())


def pressure(reading: Reading, thresholds: Thresholds, before: Pressure = Pressure.OK) -> Pressure:
    """Return how pressed ``reading`` is, given how pressed it was; OK where nobody knows a limit."""
    share = reading.share
    return Pressure.OK if share is None else thresholds.level(share, before)
