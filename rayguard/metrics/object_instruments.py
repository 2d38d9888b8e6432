"""What is measured of references to objects: a part of ``rayguard.metrics.instruments``, which see."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rayguard.metrics.instrument import Instrument, MetricType

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from rayguard.metrics.instrument import Values
    from rayguard.objects.holdings import Holdings


def _one(number: Callable[[Holdings], int]) -> Callable[[Holdings], Iterable[tuple[Values, float]]]:
    return lambda holdings: [((), number(holdings))]


OBJECT_INSTRUMENTS: tuple[Instrument[Holdings], ...] = (
    Instrument(
        name="rayguard_objects_held",
        type=MetricType.GAUGE,
        help="Objects held by the process that was seen making them, as of its last pass; 0 without scopes.",
        unit="objects",
        read=_one(lambda holdings: len(holdings.objects)),
    ),
    Instrument(
        name="rayguard_objects_waiting",
        type=MetricType.GAUGE,
        help="Objects that outlived their scope and were left alone at the end of the last one: in use.",
        unit="objects",
        read=_one(lambda holdings: holdings.totals.waiting),
    ),
    Instrument(
        name="rayguard_objects_freed_total",
        type=MetricType.COUNTER,
        help="Objects whose references were ended with their scope, in the process that held them.",
        unit="objects",
        read=_one(lambda holdings: holdings.totals.ended),
    ),
    Instrument(
        name="rayguard_objects_freed_bytes_total",
        type=MetricType.COUNTER,
        help="Bytes of the objects whose references were ended, where Ray told their size.",
        unit="bytes",
        read=_one(lambda holdings: holdings.totals.ended_bytes),
    ),
    Instrument(
        name="rayguard_actor_handles_freed_total",
        type=MetricType.COUNTER,
        help="Actor handles that were ended with their scope.",
        unit="handles",
        read=_one(lambda holdings: holdings.totals.handles_ended),
    ),
)
