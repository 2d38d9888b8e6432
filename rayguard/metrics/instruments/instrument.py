"""What one metric is: name, meaning, labels, and where the number stands."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Generic, TypeAlias, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from typing_extensions import Never

    from rayguard.recovery.tally import Durations

    Values: TypeAlias = tuple[str, ...]
    AnyInstrument: TypeAlias = "Instrument[Never]"  # it is described, and what it reads not known

S_contra = TypeVar("S_contra", contravariant=True)


if TYPE_CHECKING:
    Read: TypeAlias = Callable[[S_contra], Iterable[tuple[Values, float | Durations]]]


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
class Instrument(Generic[S_contra]):
    """One metric. ``read`` yields (label values, number) from a source; of a histogram, ``Durations``.

    A counter starts at zero with its process: a node adds up the lives of a process by itself
    (``rayguard.metrics.node.merged_numbers``), so one that is restored from an earlier life would count
    twice.

    Invariant: the name of a counter ends in ``_total``, and in no other case.
    """

    name: str
    type: MetricType
    help: str
    read: Read[S_contra]
    labels: tuple[str, ...] = ()
    unit: str = ""  # empty for plain counts of the thing in the name
    merge: Merge = Merge.SUM  # of a gauge


@dataclass(frozen=True, slots=True)
class Labelled(Generic[S_contra]):
    """A way to read numbers, and the labels that its values are for."""

    labels: tuple[str, ...]
    read: Read[S_contra]


def one(number: Callable[[S_contra], float | Durations | None]) -> Labelled[S_contra]:
    """Return how to read a number without labels; None is not shown."""
    return Labelled((), lambda source: [] if (found := number(source)) is None else [((), found)])


def by(label: str, numbers: Callable[[S_contra], Mapping[str, float]]) -> Labelled[S_contra]:
    """Return how to read numbers by the values of one label."""
    return Labelled((label,), lambda source: [((name,), found) for name, found in numbers(source).items()])


def counter(
    name: str, about: str, numbers: Labelled[S_contra], *, unit: str | None = None
) -> Instrument[S_contra]:
    """Return what only grows. The last word of a name is its unit, unless another one is given."""
    return _instrument(MetricType.COUNTER, name, about, numbers, unit=unit)


def gauge(
    name: str, about: str, numbers: Labelled[S_contra], *, unit: str | None = None, merge: Merge = Merge.SUM
) -> Instrument[S_contra]:
    """Return what goes up and down; ``unit`` as that of a counter."""
    return replace(_instrument(MetricType.GAUGE, name, about, numbers, unit=unit), merge=merge)


def histogram(name: str, about: str, numbers: Labelled[S_contra]) -> Instrument[S_contra]:
    """Return durations, in seconds."""
    return _instrument(MetricType.HISTOGRAM, name, about, numbers, unit="seconds")


def _instrument(
    kind: MetricType, name: str, about: str, numbers: Labelled[S_contra], *, unit: str | None
) -> Instrument[S_contra]:
    unit = name.removesuffix("_total").rpartition("_")[2] if unit is None else unit
    labels, read = numbers.labels, numbers.read
    return Instrument(name=name, type=kind, help=about, read=read, labels=labels, unit=unit)
