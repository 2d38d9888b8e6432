"""All dashboards, in the order in which a person opens them."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from deploy.generate.dashboards.engines import engines
from deploy.generate.dashboards.memory import memory
from deploy.generate.dashboards.nodes import nodes
from deploy.generate.dashboards.overview import overview

if TYPE_CHECKING:
    from deploy.generate.dashboards.board import Board


@lru_cache(maxsize=1)
def boards() -> tuple[Board, ...]:
    """Return them."""
    return (overview(), engines(), memory(), nodes())
