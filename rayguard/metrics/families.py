"""Numbers in the form in which Prometheus's client library serves them."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from rayguard.metrics.instruments.instrument import MetricType
from rayguard.recovery.tally import Durations

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rayguard.metrics.instruments.instrument import AnyInstrument, Values
    from rayguard.metrics.node.tables import Number

Family = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily
_PLAIN = {MetricType.COUNTER: CounterMetricFamily, MetricType.GAUGE: GaugeMetricFamily}


def family(
    instrument: AnyInstrument, labels: tuple[str, ...], numbers: Iterable[tuple[Values, Number]] = ()
) -> Family:
    """Return an instrument with its numbers; without them, only its name and meaning."""
    if instrument.type is MetricType.HISTOGRAM:
        histogram = HistogramMetricFamily(instrument.name, instrument.help, labels=labels)
        for values, durations in numbers:
            assert isinstance(durations, Durations)
            histogram.add_metric(values, _buckets(durations), durations.sum)
        return histogram
    plain: CounterMetricFamily | GaugeMetricFamily = _PLAIN[instrument.type](
        instrument.name, instrument.help, labels=labels
    )
    for values, number in numbers:
        assert not isinstance(number, Durations)
        plain.add_metric(values, number)
    return plain


def _buckets(durations: Durations) -> list[tuple[str, float]]:
    """Return Prometheus's form: each bucket counts all that took at most so long."""
    bounds = [*(str(bound) for bound in durations.bounds), "+Inf"]
    return list(zip(bounds, accumulate(durations.counts), strict=True))
