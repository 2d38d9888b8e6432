"""What is measured of a guarded process: name, meaning, labels, and where the number stands.

With the lists of pools, references, nodes and jobs it is all that rayguard measures (``known``): the exporter
serves them, ``docs/metrics.md`` is printed from them (``python -m rayguard.metrics.instruments``), dashboards
and alerts are generated from them. Knows no Prometheus: the numbers are ``rayguard.recovery.tally``.

Label values come from enums and from names that the user's code gave; never from messages or ids, so that
the number of time series is bounded.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from rayguard.metrics.instrument import Instrument, Merge, MetricType

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


@lru_cache(maxsize=1)
def _version() -> str:
    from importlib.metadata import version  # noqa: PLC0415 - to load it and to ask it takes milliseconds

    return version("rayguard")


INSTRUMENTS: tuple[Instrument[Tally], ...] = (
    Instrument(
        name="rayguard_incidents_total",
        type=MetricType.COUNTER,
        help="Closed incidents: what it was, what had to be restarted, what was done, how it ended.",
        labels=("kind", "scope", "remedy", "outcome", "ray_job"),
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
        help="Safe settings in force: 0 is full speed, more is safer and slower; of several the highest.",
        labels=("engine",),
        merge=Merge.MAX,
        unit="rung",
        read=_of_engines(lambda engine: engine.rung),
    ),
    Instrument(
        name="rayguard_engine_epoch",
        type=MetricType.GAUGE,
        help="Which rebuild of the engine is running (older results are stale); of several the highest.",
        labels=("engine",),
        merge=Merge.MAX,
        unit="epoch",
        read=_of_engines(lambda engine: engine.epoch),
    ),
    Instrument(
        name="rayguard_engine_serving",
        type=MetricType.GAUGE,
        help="Engines that take requests now; one that is built or repaired does not.",
        labels=("engine",),
        unit="engines",
        read=_of_engines(lambda engine: float(engine.serving)),
    ),
    Instrument(
        name="rayguard_standby_ready",
        type=MetricType.GAUGE,
        help="Engines beside which a second one waits, at the current weights, to take over within a second.",
        labels=("engine",),
        unit="engines",
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
        help="Requests in the engines now.",
        labels=("engine",),
        unit="requests",
        read=_of_engines(lambda engine: engine.requests_running),
    ),
    Instrument(
        name="rayguard_tokens_generated_total",
        type=MetricType.COUNTER,
        help="Tokens generated, over all epochs of the engines.",
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
        help="Memory that guarded processes share with nobody; the processes of their engines apart.",
        unit="bytes",
        read=lambda tally: [((), tally.memory_bytes)],
    ),
    Instrument(
        name="rayguard_engine_memory_bytes",
        type=MetricType.GAUGE,
        help="Private memory of the processes of engines; absent without one.",
        unit="bytes",
        read=lambda tally: [((), tally.engine_memory_bytes)] if tally.engine_memory_bytes else [],
    ),
    Instrument(
        name="rayguard_memory_forecast_seconds",
        type=MetricType.GAUGE,
        help="Until memory runs out, by the nearest forecast; absent while nothing is foreseen.",
        unit="seconds",
        merge=Merge.MIN,
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
        help="Always 1; its label says which rayguard runs.",
        labels=("version",),
        merge=Merge.MAX,
        read=lambda _: [((_version(),), 1.0)],
    ),
)


def markdown() -> str:
    """Return ``docs/metrics.md``."""
    from rayguard.metrics.known import known  # noqa: PLC0415 - it lists these, and those of agent and supervisor

    rows = [
        f"| `{one.name}` | {one.type.value} | {', '.join(f'`{label}`' for label in one.labels) or '-'} | "
        f"{one.unit or '-'} | {one.merge.value if one.type is MetricType.GAUGE else 'sum'} | {one.help} |"
        for one in known().values()
    ]
    return "\n".join([_HEAD, *rows, _TAIL])


_HEAD = """\
# Metrics

<!-- Printed by `python -m rayguard.metrics.instruments`: change rayguard/metrics/*instruments.py instead. -->

**Of a node.** Where agents run (`rayguard up`, or a job with the plugin), each node has one endpoint for all
processes on it. Each leaves its numbers in a file every five seconds; the agent adds them up, and keeps what
the dead have counted, so that no counter falls when one dies. Every series has two labels more: `ray_job`
(the job's id; not `job`, which is Prometheus's own) and `actor_class`; never a pid, an actor or a node:
Prometheus adds `instance`. An instrument with more than 200 label sets shows the rest as one, with `other` in
all labels. What a job counted is kept for a day after its last process on the node; then its series end.
Where the endpoints are, `rayguard_metrics_service_discovery.json` says, beside Ray's own file, and `/sd` of
every endpoint. Where a token is set, give it to Prometheus in both places:

```yaml
scrape_configs:
  - job_name: rayguard
    authorization: {type: Bearer, credentials_file: /etc/prometheus/rayguard-token}
    file_sd_configs:
      - files: [/tmp/ray/rayguard_metrics_service_discovery.json]
    # or: http_sd_configs:
    #       - url: http://<any node>:<port>/sd
    #         authorization: {type: Bearer, credentials_file: /etc/prometheus/rayguard-token}
```

**Of a process.** Without agents, each guarded process serves its own at `http://127.0.0.1:<port>/metrics`
when it is given a port: `RAYGUARD_METRICS_PORT=9400` in its environment, `0` for any free one, or
`rayguard.serve_metrics(port=0)` in its code. Where the port is taken, any free one is used instead;
`rayguard status --json` says which (`metrics_url`), and `pool.status()` in the process that owns a
`RolloutPool`, which serves the pool's.

`together` says what several processes are on a node.

| name | type | labels | unit | together | meaning |
|---|---|---|---|---|---|"""

_TAIL = """
Label values are bounded: `kind`, `scope` and `outcome` come from fixed lists, `remedy` is an action and at
most one safe setting, `engine` and `target` are names given by your code, `piece` is a part of rayguard,
`relief` one of five ways to give memory back.
`pool` is `RolloutPool(<your class>)`; pools of one class in one process are added up. `state`, `reason` and
the outcomes of pools come from fixed lists; the `kind` of what cut a request may also be `drained` (its actor
was dismissed before it was done) and `retried` (its actor lives and could not answer it).

All but the gauges count from the start of the process, or on a node of its agents, and never fall.
`rayguard_tokens_saved_total` and `rayguard_tokens_lost_total` sum over all engines.
"""

if __name__ == "__main__":
    print(markdown(), end="")  # noqa: T201 - this is what it is for
