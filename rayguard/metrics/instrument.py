"""What one metric is: name, meaning, labels, and where the number stands."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Generic, TypeAlias, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from rayguard.recovery.tally import Durations

    Values: TypeAlias = tuple[str, ...]

S = TypeVar("S")


class MetricType(str, Enum):
    """What Prometheus may do with a number."""

    COUNTER = "counter"  # only grows: use rate() or increase()
    GAUGE = "gauge"
    HISTOGRAM = "histogram"  # use histogram_quantile()


class Merge(str, Enum):
    """What a gauge of several processes is together. Counters and histograms always add up."""

    SUM = "sum"
    MAX = "max"  # the worst or furthest of them
    MIN = "min"


@dataclass(frozen=True, slots=True, kw_only=True)
class Instrument(Generic[S]):
    """One metric. ``read`` yields (label values, number) from a source; of a histogram, ``Durations``.

    A counter starts at zero with its process: a node adds up the lives of a process by itself
    (``rayguard.metrics.node_numbers``), so one that is restored from an earlier life would count twice.

    Invariant: the name of a counter ends in ``_total``, and in no other case.
    """

    name: str
    type: MetricType
    help: str
    read: Callable[[S], Iterable[tuple[Values, float | Durations]]]
    labels: tuple[str, ...] = ()
    unit: str = ""  # empty for plain counts of the thing in the name
    merge: Merge = Merge.SUM  # of a gauge
