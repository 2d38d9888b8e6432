"""Every instrument there is, by name: what dashboards, recording rules and alerts may ask for.

Nothing is named twice: these are the lists that processes, nodes' agents and jobs' supervisors serve.
"""

from __future__ import annotations

from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from rayguard.metrics.instruments import INSTRUMENTS
from rayguard.metrics.job_instruments import JOB_INSTRUMENTS
from rayguard.metrics.node_instruments import NODE_INSTRUMENTS
from rayguard.metrics.object_instruments import OBJECT_INSTRUMENTS
from rayguard.metrics.pool_instruments import POOL_INSTRUMENTS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rayguard.metrics.instrument import Instrument

# The node's endpoint adds the first two to what it merges, Prometheus the last two to what it scrapes.
# Prometheus' own `job` is the name of the scrape, "rayguard": Ray's job is `ray_job`.
ADDED_LABELS = ("ray_job", "actor_class", "instance", "job")
SCRAPE = "rayguard"


@lru_cache(maxsize=1)
def known() -> Mapping[str, Instrument[Any]]:
    """Return all instruments by name."""
    every: tuple[Instrument[Any], ...] = (
        *INSTRUMENTS,
        *OBJECT_INSTRUMENTS,
        *POOL_INSTRUMENTS,
        *NODE_INSTRUMENTS,
        *JOB_INSTRUMENTS,
    )
    return MappingProxyType({one.name: one for one in every})
