"""The list of everything rayguard measures: name, meaning, labels, and where the number stands.

The one list: the exporter serves it, ``docs/metrics.md`` is printed from it
(``python -m rayguard.metrics.instruments``), and dashboards and alerts are to be generated from it. Knows no
Prometheus: the numbers are ``rayguard.recovery.tally`` and, of pools, ``rayguard.metrics.pool_tally``, of
references, ``rayguard.objects.holdings``; serving them is ``rayguard.metrics.exporter``.

Label values come from enums and from names that the user's code gave; never from messages or ids, so that
the number of time series is bounded.
"""

from __future__ import annotations

from importlib.metadata import version as installed_version
from typing import TYPE_CHECKING, Any

from rayguard.metrics.instrument import Instrument, MetricType
from rayguard.metrics.object_instruments import OBJECT_INSTRUMENTS
from rayguard.metrics.pool_instruments import POOL_INSTRUMENTS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from rayguard.metrics.instrument import Values
    from rayguard.recovery.tally import EngineTally, Tally


def _of_engines(number: Callable[[EngineTally], float]) -> Callable[[Tally], Iterable[tuple[Values, float]]]:
    return lambda tally: [((engine.name,), number(engine)) for engine in tally.engines.values()]


def _over_engines(
    number: Callable[[EngineTally], float],
) -> Callable[[Tally], Iterable[tuple[Values, float]]]:
    return lambda tally: [((), sum(number(engine) for engine in tally.engines.values()))]


INSTRUMENTS: tuple[Instrument[Tally], ...] = (
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
        name="rayguard_standby_ready",
        type=MetricType.GAUGE,
        help="1 while a second engine waits, at the current weights, to take over within a second.",
        labels=("engine",),
        unit="0 or 1",
        read=_of_engines(lambda engine: float(engine.standby_ready)),
    ),
    Instrument(
        name="rayguard_standby_failures_total",
        type=MetricType.COUNTER,
        help="Standby engines that could not be built or died while they waited; the serving one went on.",
        labels=("engine",),
        unit="failures",
        read=_of_engines(lambda engine: engine.standby_failures),
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
        name="rayguard_memory_bytes",
        type=MetricType.GAUGE,
        help="Memory of this process that it shares with nobody; its engine's processes apart.",
        unit="bytes",
        read=lambda tally: [((), tally.memory_bytes)],
    ),
    Instrument(
        name="rayguard_engine_memory_bytes",
        type=MetricType.GAUGE,
        help="Private memory of the processes of this process's engine; absent without one.",
        unit="bytes",
        read=lambda tally: [((), tally.engine_memory_bytes)] if tally.engine_memory_bytes else [],
    ),
    Instrument(
        name="rayguard_memory_forecast_seconds",
        type=MetricType.GAUGE,
        help="Until memory runs out, by forecast; absent while nothing is foreseen.",
        unit="seconds",
        read=lambda tally: [] if tally.memory_forecast_s is None else [((), tally.memory_forecast_s)],
    ),
    Instrument(
        name="rayguard_memory_reliefs_total",
        type=MetricType.COUNTER,
        help="Reliefs of memory, by kind: collect, free, reduce, engine, recycle.",
        labels=("relief",),
        unit="reliefs",
        read=lambda tally: [((name,), number) for name, number in tally.reliefs.items()],
    ),
    Instrument(
        name="rayguard_memory_relieved_bytes_total",
        type=MetricType.COUNTER,
        help="Bytes that reliefs gave back, measured; of a recycled process only its next life knows.",
        labels=("relief",),
        unit="bytes",
        read=lambda tally: [((name,), number) for name, number in tally.relieved_bytes.items()],
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
    instruments: tuple[Instrument[Any], ...] = (*INSTRUMENTS, *OBJECT_INSTRUMENTS, *POOL_INSTRUMENTS)
    rows = [
        f"| `{one.name}` | {one.type.value} | {', '.join(f'`{label}`' for label in one.labels) or '-'} | "
        f"{one.unit or '-'} | {one.help} |"
        for one in instruments
    ]
    return "\n".join([_HEAD, *rows, _TAIL])


_HEAD = """\
# Metrics

<!-- Printed by `python -m rayguard.metrics.instruments`: change rayguard/metrics/instruments.py instead. -->

Each guarded process serves these at `http://127.0.0.1:<port>/metrics` when it is given a port:
`RAYGUARD_METRICS_PORT=9400` in its environment, `0` for any free one, or `rayguard.serve_metrics(port=0)`
in its code. Where the port is taken, any free one is used instead; `rayguard status --json` says which
(`metrics_url`), and `pool.status()` in the process that owns a `RolloutPool`, which serves the pool's.

| name | type | labels | unit | meaning |
|---|---|---|---|---|"""

_TAIL = """
Label values are bounded: `kind`, `scope` and `outcome` come from fixed lists, `remedy` is an action and at
most one safe setting, `engine` and `target` are names given by your code, `piece` is a part of rayguard,
`relief` one of five ways to give memory back.
`pool` is `RolloutPool(<your class>)`; pools of one class in one process are added up. `state`, `reason` and
the outcomes of pools come from fixed lists; the `kind` of what cut a request may also be `drained` (its actor
was dismissed before it was done) and `retried` (its actor lives and could not answer it).

All but the gauges count from the start of the process and never fall. `rayguard_tokens_saved_total` and
`rayguard_tokens_lost_total` sum over the engines of the process.
"""

if __name__ == "__main__":
    print(markdown(), end="")  # noqa: T201 - this is what it is for
