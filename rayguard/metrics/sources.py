"""What this process has to show: rayguard's own numbers, and those that a part of it adds with ``show``.

The endpoint of the process (``exporter``) and its file of numbers (``rayguard.metrics.node.numbers_file``)
read from here: so what is shown once is in both. Knows no Prometheus: a worker writes its numbers without
loading it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from rayguard.harmless import harmless
from rayguard.metrics.instruments.job import JOB_INSTRUMENTS
from rayguard.metrics.instruments.node import NODE_INSTRUMENTS
from rayguard.metrics.instruments.objects import OBJECT_INSTRUMENTS
from rayguard.metrics.instruments.pool import POOL_INSTRUMENTS
from rayguard.metrics.instruments.pool_tally import POOLS, Pools
from rayguard.metrics.instruments.process import INSTRUMENTS
from rayguard.objects.holdings import HOLDINGS, Holdings
from rayguard.recovery.tally import TALLY, Durations, Tally

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from rayguard.metrics.instruments.instrument import AnyInstrument, Instrument, Values

    Reading: TypeAlias = tuple[Values, float | Durations]

S = TypeVar("S")


@lru_cache(maxsize=1)
def known() -> Mapping[str, AnyInstrument]:
    """Return all instruments by name: what a node merges, and what dashboards and alerts may ask for."""
    every: tuple[AnyInstrument, ...] = (
        *INSTRUMENTS,
        *OBJECT_INSTRUMENTS,
        *POOL_INSTRUMENTS,
        *NODE_INSTRUMENTS,
        *JOB_INSTRUMENTS,
    )
    return MappingProxyType({one.name: one for one in every})


@dataclass(frozen=True, slots=True)
class MetricSource(Generic[S]):
    """Instruments and where they read. ``read`` is called at every scrape, from any thread."""

    instruments: tuple[Instrument[S], ...]
    read: Callable[[], S]

    def readings(self) -> list[tuple[Instrument[S], list[Reading]]]:
        """Return every instrument with its numbers as they are now, all from one reading."""
        source = self.read()
        return [(one, list(one.read(source))) for one in self.instruments]


_added: dict[str, MetricSource[Any]] = {}  # by name


def show(name: str, instruments: tuple[Instrument[S], ...], read: Callable[[], S]) -> None:
    """Show what ``read()`` returns through ``instruments`` from now on, in the place of what has this name.

    A ``read`` that raises is logged and counted, and leaves its instruments out.
    """
    _added[name] = MetricSource(instruments, read)


def hide(name: str) -> None:
    """Show no longer what was shown under this name."""
    _added.pop(name, None)


def sources(
    tally: Tally = TALLY, pools: Pools = POOLS, holdings: Holdings = HOLDINGS
) -> list[MetricSource[Any]]:
    """Return all that is shown, rayguard's own numbers first."""
    own: list[MetricSource[Any]] = [
        MetricSource(INSTRUMENTS, tally.snapshot),
        MetricSource(OBJECT_INSTRUMENTS, lambda: holdings),
        MetricSource(POOL_INSTRUMENTS, pools.snapshot),
    ]
    return own + list(_added.values())


def readings(shown: Iterable[MetricSource[Any]]) -> Iterator[tuple[AnyInstrument, list[Reading]]]:
    """Yield every instrument with its numbers; a source that fails is left out."""
    for source in shown:
        with harmless("metrics"):
            yield from source.readings()


# A forked child is not what its parent showed: an agent's child is no agent.
os.register_at_fork(after_in_child=_added.clear)
