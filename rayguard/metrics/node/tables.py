"""Numbers of instruments as plain values, and how they stand in a file.

What becomes of several of them is ``rayguard.metrics.node.merging``.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias

from rayguard.metrics.instruments.instrument import MetricType
from rayguard.recovery.tally import Durations

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from rayguard.metrics.instruments.instrument import AnyInstrument, Values

    Number: TypeAlias = float | Durations
    Series: TypeAlias = dict[Values, Number]
    # By name of the instrument; the values of a key stand in the order of ``labels_of``. Never changed in
    # place by who was given one: tables share what is in them.
    Table: TypeAlias = dict[str, Series]
    Instruments: TypeAlias = Mapping[str, AnyInstrument]
    Encoded: TypeAlias = dict[str, object]  # one family, as JSON
    Readings: TypeAlias = Iterable[tuple[AnyInstrument, Iterable[tuple[Values, Number]]]]

RAY_JOB, ACTOR_CLASS = "ray_job", "actor_class"
_GRAIN = 1 << 20


def labels_of(instrument: AnyInstrument) -> tuple[str, ...]:
    """Return the labels of an instrument on a node: its own, and whose it is.

    Not ``job``: that is Prometheus's own name for what it scrapes, and would be renamed or hide it.
    """
    return _and_whose(instrument.labels)


@lru_cache(maxsize=256)
def _and_whose(labels: tuple[str, ...]) -> tuple[str, ...]:
    return labels + tuple(one for one in (RAY_JOB, ACTOR_CLASS) if one not in labels)


def exact(number: float) -> float:
    """Round to a millionth, in binary, so that sums do not depend on their order.

    Plain floats do: a counter that moves from one sum to another would fall by its last bit, which
    Prometheus takes for a restart from zero. Exact to 2^53 for whole numbers, to 2^33 for others.
    """
    return round(number * _GRAIN) / _GRAIN


def encode(readings: Readings) -> list[Encoded]:
    """Return plain JSON types; a number that is none (NaN, infinite) is left out."""
    return [_encoded(one, one.labels, numbers) for one, numbers in readings]


def encode_table(table: Table, instruments: Instruments) -> list[Encoded]:
    """Return plain JSON types of a table, all its labels included."""
    named = ((instruments[name], series) for name, series in table.items())
    return [_encoded(one, labels_of(one), series.items()) for one, series in named]


def _encoded(
    one: AnyInstrument, labels: tuple[str, ...], numbers: Iterable[tuple[Values, Number]]
) -> Encoded:
    samples = [
        [dict(zip(labels, values, strict=True)), _plain(number)]
        for values, number in numbers
        if isinstance(number, Durations) or math.isfinite(number)
    ]
    return {"name": one.name, "type": one.type.value, "samples": samples}


def _plain(number: Number) -> object:
    if isinstance(number, Durations):
        return {"bounds": number.bounds, "counts": list(number.counts), "sum": number.sum}
    return number


def decode(families: Any, instruments: Instruments, whose: Mapping[str, str]) -> Table:
    """Return the numbers of a file; ``whose`` gives the labels that it does not say itself, or leaves empty.

    An instrument that is not known here (or is of another type here) is left out: it is of another version.
    Raises ``ValueError`` for what is no such list.
    """
    table: Table = {}
    try:
        for family in families:
            instrument = instruments.get(family["name"])
            if instrument is None or family["type"] != instrument.type.value:
                continue
            names = labels_of(instrument)
            bare = tuple([whose.get(name, "") for name in names])
            read = _durations if instrument.type is MetricType.HISTOGRAM else _finite
            table[instrument.name] = {
                tuple([str(labels.get(n) or default) for n, default in zip(names, bare, strict=True)])
                if labels
                else bare: read(number)
                for labels, number in family["samples"]
            }
    except (KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"not a list of families: {error!r}") from error
    return table


def _finite(number: Any) -> float:
    if not isinstance(number, (int, float)) or not math.isfinite(number):
        raise ValueError(f"not a number: {number!r}")
    return exact(number)


def _durations(number: Any) -> Durations:
    bounds, counts = tuple(number["bounds"]), list(number["counts"])
    right = all(isinstance(one, (int, float)) for one in bounds) and all(
        isinstance(one, int) for one in counts
    )
    if not right or len(counts) != len(bounds) + 1 or list(bounds) != sorted(set(bounds)):
        raise ValueError(f"not a histogram: {number!r}")
    return Durations(bounds, counts, _finite(number["sum"]))
