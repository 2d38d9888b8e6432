"""All dashboards, in the order in which a person opens them."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from rayguard.metrics.dashboards.engines import engines
from rayguard.metrics.dashboards.memory import memory
from rayguard.metrics.dashboards.nodes import nodes
from rayguard.metrics.dashboards.overview import overview

if TYPE_CHECKING:
    from rayguard.metrics.dashboards.board import Board


@lru_cache(maxsize=1)
def boards() -> tuple[Board, ...]:
    """Return them."""
    return (overview(), engines(), memory(), nodes())
