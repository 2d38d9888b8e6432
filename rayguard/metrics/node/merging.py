"""The numbers of many processes as those of one node: what adds up, what stays of the dead, how many series.

Values only; who reads the files and remembers is ``rayguard.metrics.node.merged_numbers``.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, TypeAlias

from rayguard.metrics.instruments.instrument import Merge, MetricType
from rayguard.metrics.node.tables import RAY_JOB, labels_of
from rayguard.recovery.tally import Durations

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from collections.abc import Set as AbstractSet

    from rayguard.metrics.instruments.instrument import AnyInstrument, Values
    from rayguard.metrics.node.tables import Instruments, Number, Series, Table

    _Rule: TypeAlias = Callable[[Any, Any], Number]  # of two floats, or of two histograms

MAX_SERIES = 200  # label sets of one instrument; all beyond are one more
OTHER = "other"  # the value of every label of that one


def merged(tables: Iterable[Table], instruments: Instruments) -> Table:
    """Return all numbers together. The order of the tables does not matter."""
    parts: dict[str, list[Series]] = {}
    for table in tables:
        for name, series in table.items():
            parts.setdefault(name, []).append(series)
    return {name: _merged(series, instruments[name]) for name, series in parts.items()}


def _merged(parts: Iterable[Series], instrument: AnyInstrument) -> Series:
    whole: Series = {}
    both = _rule_of(instrument)
    for part in parts:
        for values, number in part.items():
            before = whole.get(values)
            whole[values] = number if before is None else both(before, number)
    return whole


def _rule_of(instrument: AnyInstrument) -> _Rule:
    if instrument.type is MetricType.HISTOGRAM:
        return _durations
    return _RULES[instrument.merge] if instrument.type is MetricType.GAUGE else operator.add


_RULES: dict[Merge, _Rule] = {Merge.SUM: operator.add, Merge.MAX: max, Merge.MIN: min}


def _durations(one: Durations, other: Durations) -> Durations:
    """Add up, in the buckets that both have: bounds differ between versions of rayguard."""
    bounds = one.bounds
    if bounds != other.bounds:
        bounds = tuple(sorted(set(bounds) & set(other.bounds)))
        one, other = _onto(one, bounds), _onto(other, bounds)
    counts = list(map(operator.add, one.counts, other.counts))
    return Durations(bounds, counts, one.sum + other.sum)


def _onto(durations: Durations, bounds: tuple[float, ...]) -> Durations:
    upto = dict(zip(durations.bounds, accumulate(durations.counts), strict=False))
    edges = [0, *(upto[bound] for bound in bounds), sum(durations.counts)]
    return Durations(bounds, [b - a for a, b in pairwise(edges)], durations.sum)


def counted(table: Table, instruments: Instruments) -> Table:
    """Return what is kept of a dead process: what it counted, and no gauge."""
    return {name: series for name, series in table.items() if instruments[name].type is not MetricType.GAUGE}


@dataclass(frozen=True, slots=True)
class Places:
    """Which label sets of one instrument are shown by themselves, and which as part of ``other``.

    Invariant: at most ``limit`` are ``own``. One that is present stays where it is: moved from ``other`` to
    a place of its own it would make ``other`` fall.
    """

    own: AbstractSet[Values] = frozenset()
    other: AbstractSet[Values] = frozenset()

    def after(self, present: AbstractSet[Values], limit: int = MAX_SERIES) -> Places:
        """Return the places of the label sets that are there now."""
        own, other = self.own & present, self.other & present
        new = sorted(one for one in present - own - other if not _is_other(one))
        room = max(0, limit - len(own))
        return Places(own | set(new[:room]), other | set(new[room:]))


def _is_other(values: Values) -> bool:
    return bool(values) and all(value == OTHER for value in values)


def placed(table: Table, before: Mapping[str, Places], limit: int = MAX_SERIES) -> dict[str, Places]:
    """Return the places of all that is in ``table``, given those before."""
    return {name: before.get(name, Places()).after(series.keys(), limit) for name, series in table.items()}


def bounded(table: Table, places: Mapping[str, Places], instruments: Instruments) -> Table:
    """Return ``table`` with the label sets that have no place of their own merged into one."""
    return {name: _bounded(series, places[name], instruments[name]) for name, series in table.items()}


def _bounded(series: Series, places: Places, instrument: AnyInstrument) -> Series:
    if not places.other:
        return series
    own = {values: number for values, number in series.items() if values not in places.other}
    other = (OTHER,) * len(labels_of(instrument))
    beyond = ({other: number} for values, number in series.items() if values in places.other)
    return _merged([own, *beyond], instrument)


def jobs_in(table: Table, instruments: Instruments) -> set[str]:
    """Return the Ray jobs that have numbers here."""
    return {
        values[place]
        for name, series in table.items()
        for place in [labels_of(instruments[name]).index(RAY_JOB)]
        for values in series
    }


def without(table: Table, jobs: AbstractSet[str], instruments: Instruments) -> Table:
    """Return ``table`` without these Ray jobs: every series of theirs is gone as a whole."""
    left: Table = {}
    for name, series in table.items():
        place = labels_of(instruments[name]).index(RAY_JOB)
        left[name] = {values: number for values, number in series.items() if values[place] not in jobs}
    return left
