"""What this process has to show: rayguard's own numbers, and those that a part of it adds with ``show``.

The endpoint of the process (``exporter``) and its numbers file (``numbers``) both read from here, so that
what is shown once is in both. Knows no Prometheus: a worker writes its numbers without loading it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from rayguard.metrics.instruments import INSTRUMENTS
from rayguard.metrics.object_instruments import OBJECT_INSTRUMENTS
from rayguard.metrics.pool_instruments import POOL_INSTRUMENTS
from rayguard.metrics.pool_tally import POOLS, Pools
from rayguard.objects.holdings import HOLDINGS, Holdings
from rayguard.recovery.harmless import harmless
from rayguard.recovery.tally import TALLY, Tally

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from rayguard.metrics.instrument import Instrument, Values
    from rayguard.recovery.tally import Durations

S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class Source(Generic[S]):
    """Instruments and where they read. ``read`` is called at every scrape, from any thread."""

    instruments: tuple[Instrument[S], ...]
    read: Callable[[], S]

    def readings(self) -> list[tuple[Instrument[S], list[tuple[Values, float | Durations]]]]:
        """Return every instrument with its numbers as they are now, all from one reading."""
        source = self.read()
        return [(one, list(one.read(source))) for one in self.instruments]


_added: dict[str, Source[Any]] = {}  # by name


def show(name: str, instruments: tuple[Instrument[S], ...], read: Callable[[], S]) -> None:
    """Show what ``read()`` returns through ``instruments`` from now on, in the place of what has this name.

    A ``read`` that raises is logged and counted, and leaves its instruments out.
    """
    _added[name] = Source(instruments, read)


def hide(name: str) -> None:
    """Show no longer what was shown under this name."""
    _added.pop(name, None)


def sources(tally: Tally = TALLY, pools: Pools = POOLS, holdings: Holdings = HOLDINGS) -> list[Source[Any]]:
    """Return all that is shown, rayguard's own numbers first."""

    def counted() -> Tally:
        now = tally.snapshot()
        with holdings.lock:  # those of the ledger know no tally: it is on a higher floor
            now.guard_errors.update(holdings.totals.errors)
        return now

    own: list[Source[Any]] = [
        Source(INSTRUMENTS, counted),
        Source(OBJECT_INSTRUMENTS, lambda: holdings),
        Source(POOL_INSTRUMENTS, pools.snapshot),
    ]
    return own + list(_added.values())


def readings(
    shown: Iterable[Source[Any]],
) -> Iterator[tuple[Instrument[Any], list[tuple[Values, float | Durations]]]]:
    """Yield every instrument with its numbers; a source that fails is left out."""
    for source in shown:
        with harmless("metrics"):
            yield from source.readings()


# A forked child is not what its parent showed: an agent's child is no agent.
os.register_at_fork(after_in_child=_added.clear)
