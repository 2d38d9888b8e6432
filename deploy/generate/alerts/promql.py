"""Queries are written through the instruments: a name, label or use that does not exist raises here.

``Scope`` says whose numbers are meant: ``EVERYWHERE`` in rules and alerts, ``JOB`` and ``NODE`` follow the
variables of a dashboard. Windows are Prometheus durations (``"5m"``) or Grafana's (``"$__rate_interval"``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from rayguard.errors import ConfigError
from rayguard.metrics.instruments.instrument import Instrument, MetricType
from rayguard.metrics.node.discovery import JOB as SCRAPE
from rayguard.metrics.sources import known

if TYPE_CHECKING:
    from collections.abc import Mapping

Scope: TypeAlias = "Mapping[str, str]"
EVERYWHERE: Scope = {}
JOB: Scope = {"ray_job": "=~$ray_job", "instance": "=~$instance"}
NODE: Scope = {"instance": "=~$instance"}
# The node's endpoint adds the first two to what it merges, Prometheus the last two to what it scrapes.
# Prometheus' own `job` is the name of the scrape, "rayguard": Ray's job is `ray_job`.
ADDED_LABELS = ("ray_job", "actor_class", "instance", "job")


def gauge(name: str, scope: Scope = EVERYWHERE, **where: str) -> str:
    """Return the selector of a gauge."""
    return _selector(name, MetricType.GAUGE, {**scope, **where})


def lately(name: str, window: str, scope: Scope = EVERYWHERE, **where: str) -> str:
    """Return the newest value of a gauge within ``window``.

    The gauge of a process that died vanishes at once, and an alert on it would resolve and fire again with
    the next life: this one stays for the window.
    """
    return f"last_over_time({gauge(name, scope, **where)}[{window}])"


def rate(name: str, window: str, scope: Scope = EVERYWHERE, **where: str) -> str:
    """Return the growth of a counter per second."""
    return f"rate({_selector(name, MetricType.COUNTER, {**scope, **where})}[{window}])"


def increase(name: str, window: str, scope: Scope = EVERYWHERE, **where: str) -> str:
    """Return the growth of a counter that is there from the start."""
    return f"increase({_selector(name, MetricType.COUNTER, {**scope, **where})}[{window}])"


def grown(name: str, window: str, scope: Scope = EVERYWHERE, *, proved: bool = False, **where: str) -> str:
    """Return the growth of a counter whose labels come to be with their first event.

    Such a series begins at 1 and ``increase`` never sees that one: the first crash would be missed. So a
    series that was not there ``window`` ago counts whole. With ``proved``, only where its node was scraped
    then: a Prometheus that has just begun takes nothing old for new, as an alert must not.
    """
    series = _selector(name, MetricType.COUNTER, {**scope, **where})
    new = f"({series} unless {series} offset {window})"
    if proved:
        new = f'({new} and on (instance) (up{{job="{SCRAPE}"}} offset {window} == 1))'
    return f"({new} or increase({series}[{window}]))"


def quantile(
    share: float, name: str, window: str, by: tuple[str, ...] = (), scope: Scope = EVERYWHERE
) -> str:
    """Return a quantile of a histogram, over all that it is not split ``by``."""
    buckets = _selector(name, MetricType.HISTOGRAM, scope, "_bucket")
    return f"histogram_quantile({share:g}, {total(f'rate({buckets}[{window}])', *by, 'le')})"


def spent(name: str, window: str, scope: Scope = EVERYWHERE) -> str:
    """Return the seconds per second that went into what a histogram of durations measures."""
    return f"rate({_selector(name, MetricType.HISTOGRAM, scope, '_sum')}[{window}])"


def observed(name: str, window: str, scope: Scope = EVERYWHERE) -> str:
    """Return how many durations a histogram took, per second."""
    return f"rate({_selector(name, MetricType.HISTOGRAM, scope, '_count')}[{window}])"


def mean(name: str, window: str, by: tuple[str, ...] = (), scope: Scope = EVERYWHERE) -> str:
    """Return the mean of a histogram; nothing where nothing was measured (not NaN, which an alert takes)."""
    number = total(observed(name, window, scope), *by)
    return f"{total(spent(name, window, scope), *by)} / ({number} > 0)"


def total(query: str, *by: str) -> str:
    """Return the sum, by labels where there are some."""
    return _over("sum", query, by)


def most(query: str, *by: str) -> str:
    """Return the maximum, by labels where there are some."""
    return _over("max", query, by)


def least(query: str, *by: str) -> str:
    """Return the minimum, by labels where there are some."""
    return _over("min", query, by)


def number_of(query: str, *by: str) -> str:
    """Return how many series there are, by labels where there are some."""
    return _over("count", query, by)


def or_zero(query: str, **named: str) -> str:
    """Return ``query``, or 0 where it has no series: only where nothing there *means* zero.

    A query by labels needs ``named``, the labels of that 0: without them it would stand beside the series
    that there are, and a legend of labels would have no name for it.
    """
    zero = "vector(0)"
    for label, value in named.items():
        zero = f'label_replace({zero}, "{label}", "{value}", "", "")'
    return f"{query} or on () {zero}" if named else f"{query} or {zero}"


def _over(operation: str, query: str, by: tuple[str, ...]) -> str:
    return f"{operation} by ({', '.join(by)}) ({query})" if by else f"{operation}({query})"


def _selector(name: str, kind: MetricType, where: Scope, part: str = "") -> str:
    instrument = known().get(name)
    if instrument is None:
        raise ConfigError(f"there is no instrument {name!r}; rayguard.metrics.sources lists them")
    if instrument.type is not kind:
        raise ConfigError(f"{name} is a {instrument.type.value}, and is read as a {kind.value} here")
    matchers = ", ".join(_matcher(instrument, label, value) for label, value in sorted(where.items()))
    return f"{name}{part}{{{matchers}}}" if matchers else f"{name}{part}"


def _matcher(instrument: Instrument[Any], label: str, value: str) -> str:
    if label not in (*instrument.labels, *ADDED_LABELS):
        raise ConfigError(f"{instrument.name} has no label {label!r}: it has {', '.join(instrument.labels)}")
    for operator in ("=~", "!~", "!="):
        if value.startswith(operator):
            return f'{label}{operator}"{value.removeprefix(operator)}"'
    return f'{label}="{value}"'
