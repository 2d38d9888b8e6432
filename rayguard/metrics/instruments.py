"""The list of everything rayguard measures: name, meaning, labels, and where the number stands.

The one list: the exporter serves it, ``docs/metrics.md`` is printed from it
(``python -m rayguard.metrics.instruments``), and dashboards and alerts are to be generated from it. Knows no
Prometheus: the numbers are ``rayguard.recovery.tally``, serving them is ``rayguard.metrics.exporter``.

Label values come from enums and from names that the user's code gave; never from messages or ids, so that
the number of time series is bounded.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from importlib.metadata import version as installed_version
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from rayguard.recovery.tally import Durations, EngineTally, Tally

    Values: TypeAlias = tuple[str, ...]


class MetricType(str, Enum):
    """What Prometheus may do with a number."""

    COUNTER = "counter"  # only grows: use rate() or increase()
    GAUGE = "gauge"
    HISTOGRAM = "histogram"  # use histogram_quantile()


@dataclass(frozen=True, slots=True, kw_only=True)
class Instrument:
    """One metric. ``read`` yields (label values, number) from a tally; of a histogram, ``Durations``.

    Invariant: the name of a counter ends in ``_total``, and in no other case.
    """

    name: str
    type: MetricType
    help: str
    read: Callable[[Tally], Iterable[tuple[Values, float | Durations]]]
    labels: tuple[str, ...] = ()
    unit: str = ""  # empty for plain counts of the thing in the name


def _of_engines(number: Callable[[EngineTally], float]) -> Callable[[Tally], Iterable[tuple[Values, float]]]:
    return lambda tally: [((engine.name,), number(engine)) for engine in tally.engines.values()]


def _over_engines(
    number: Callable[[EngineTally], float],
) -> Callable[[Tally], Iterable[tuple[Values, float]]]:
    return lambda tally: [((), sum(number(engine) for engine in tally.engines.values()))]


INSTRUMENTS: tuple[Instrument, ...] = (
    Instrument(
        name="rayguard_incidents_total",
        type=MetricType.COUNTER,
        help="Closed incidents: what it was, what had to be restarted, what was done, how it ended.",
        labels=("kind", "scope", "remedy", "outcome"),
        unit="incidents",
        read=lambda tally: tally.incidents.items(),
    ),
    Instrument(
        name="rayguard_detection_seconds",
        type=MetricType.HISTOGRAM,
        help="From the fault itself to its detection.",
        unit="seconds",
        read=lambda tally: [((), tally.detect_s)],
    ),
    Instrument(
        name="rayguard_recovery_seconds",
        type=MetricType.HISTOGRAM,
        help="From the detection of a fault to the moment the engine served again.",
        unit="seconds",
        read=lambda tally: [((), tally.recover_s)],
    ),
    Instrument(
        name="rayguard_engine_restarts_total",
        type=MetricType.COUNTER,
        help="Engines rebuilt after a fault.",
        labels=("engine",),
        unit="restarts",
        read=_of_engines(lambda engine: engine.restarts),
    ),
    Instrument(
        name="rayguard_engine_rung",
        type=MetricType.GAUGE,
        help="Safe settings in force: 0 is full speed, more is safer and slower.",
        labels=("engine",),
        unit="rung",
        read=_of_engines(lambda engine: engine.rung),
    ),
    Instrument(
        name="rayguard_engine_epoch",
        type=MetricType.GAUGE,
        help="Which rebuild of the engine is running; results of an older epoch are stale.",
        labels=("engine",),
        unit="epoch",
        read=_of_engines(lambda engine: engine.epoch),
    ),
    Instrument(
        name="rayguard_engine_serving",
        type=MetricType.GAUGE,
        help="1 while the engine takes requests, 0 while it is built or repaired.",
        labels=("engine",),
        unit="0 or 1",
        read=_of_engines(lambda engine: float(engine.serving)),
    ),
    Instrument(
        name="rayguard_engine_requests_running",
        type=MetricType.GAUGE,
        help="Requests in the engine now.",
        labels=("engine",),
        unit="requests",
        read=_of_engines(lambda engine: engine.requests_running),
    ),
    Instrument(
        name="rayguard_tokens_generated_total",
        type=MetricType.COUNTER,
        help="Tokens generated, over all epochs of the engine.",
        labels=("engine",),
        unit="tokens",
        read=_of_engines(lambda engine: engine.tokens_generated),
    ),
    Instrument(
        name="rayguard_tokens_saved_total",
        type=MetricType.COUNTER,
        help="Tokens of interrupted requests that did not have to be generated again.",
        unit="tokens",
        read=_over_engines(lambda engine: engine.tokens_saved),
    ),
    Instrument(
        name="rayguard_tokens_lost_total",
        type=MetricType.COUNTER,
        help="Tokens of interrupted requests that had to be generated again.",
        unit="tokens",
        read=_over_engines(lambda engine: engine.tokens_lost),
    ),
    Instrument(
        name="rayguard_calls_total",
        type=MetricType.COUNTER,
        help="Calls that went through the guard.",
        labels=("target",),
        unit="calls",
        read=lambda tally: [((name,), number) for name, number in tally.calls.items()],
    ),
    Instrument(
        name="rayguard_guard_errors_total",
        type=MetricType.COUNTER,
        help="Errors inside rayguard itself, by the piece that failed; the user's call went on. Should be 0.",
        labels=("piece",),
        unit="errors",
        read=lambda tally: [((name,), number) for name, number in tally.guard_errors.items()],
    ),
    Instrument(
        name="rayguard_info",
        type=MetricType.GAUGE,
        help="Always 1; its label says which rayguard this process runs.",
        labels=("version",),
        read=lambda _: [((installed_version("rayguard"),), 1.0)],
    ),
)


def markdown() -> str:
    """Return ``docs/metrics.md``."""
    rows = [
        f"| `{one.name}` | {one.type.value} | {', '.join(f'`{label}`' for label in one.labels) or '-'} | "
        f"{one.unit or '-'} | {one.help} |"
        for one in INSTRUMENTS
    ]
    return "\n".join([_HEAD, *rows, _TAIL])


_HEAD = """\
# Metrics

<!-- Printed by `python -m rayguard.metrics.instruments`: change rayguard/metrics/instruments.py instead. -->

Each guarded process serves these at `http://127.0.0.1:<port>/metrics` when it is given a port:
`RAYGUARD_METRICS_PORT=9400` in its environment, `0` for any free one, or `rayguard.serve_metrics(port=0)`
in its code. Where the port is taken, any free one is used instead; `rayguard status --json` says which
(`metrics_url`).

| name | type | labels | unit | meaning |
|---|---|---|---|---|"""

_TAIL = """
Label values are bounded: `kind`, `scope` and `outcome` come from fixed lists, `remedy` is an action and at
most one safe setting, `engine` and `target` are names given by your code, `piece` is a part of rayguard.

All but the gauges count from the start of the process and never fall. `rayguard_tokens_saved_total` and
`rayguard_tokens_lost_total` sum over the engines of the process.
"""

if __name__ == "__main__":
    print(markdown(), end="")  # noqa: T201 - this is what it is for
