"""What is measured of a guarded or watched process: name, meaning, labels, and where the number stands.

With the lists of pools, references, nodes and jobs it is all that rayguard measures
(``rayguard.metrics.sources``): the exporter serves them; in the repository ``deploy.generate``
makes ``docs/metrics.md``, dashboards and alerts from them. Knows no Prometheus: the numbers are
``rayguard.recovery.tally``.

Label values come from enums and from names that the user's code gave; never from messages or ids, so that
the number of time series is bounded.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from rayguard.metrics.instruments.instrument import (
    Instrument,
    Labelled,
    Merge,
    by,
    counter,
    gauge,
    histogram,
    one,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from rayguard.recovery.tally import EngineTally, Tally


def _of_engines(number: Callable[[EngineTally], float]) -> Labelled[Tally]:
    return Labelled(("engine",), lambda tally: [((one.name,), number(one)) for one in tally.engines.values()])


def _over_engines(number: Callable[[EngineTally], float]) -> Labelled[Tally]:
    return one(lambda tally: sum(number(engine) for engine in tally.engines.values()))


@lru_cache(maxsize=1)
def _version() -> str:
    from importlib.metadata import version  # noqa: PLC0415 - to load it and to ask it takes milliseconds

    return version("rayguard")


INSTRUMENTS: tuple[Instrument[Tally], ...] = (
    counter(
        "rayguard_incidents_total",
        "Closed incidents: what it was, what had to be restarted, what was done, how it ended.",
        Labelled(("kind", "scope", "remedy", "outcome", "ray_job"), lambda tally: tally.incidents.items()),
    ),
    histogram(
        "rayguard_detection_seconds",
        "From the fault itself to its detection.",
        one(lambda tally: tally.detect_s),
    ),
    histogram(
        "rayguard_recovery_seconds",
        "From the detection of a fault to the moment the engine served again.",
        one(lambda tally: tally.recover_s),
    ),
    counter(
        "rayguard_engine_restarts_total",
        "Engines rebuilt after a fault.",
        _of_engines(lambda engine: engine.restarts),
    ),
    gauge(
        "rayguard_engine_rung",
        "Safe settings in force: 0 is full speed, more is safer and slower; of several the highest.",
        _of_engines(lambda engine: engine.rung),
        merge=Merge.MAX,
    ),
    gauge(
        "rayguard_engine_epoch",
        "Which rebuild of the engine is running (older results are stale); of several the highest.",
        _of_engines(lambda engine: engine.epoch),
        merge=Merge.MAX,
    ),
    gauge(
        "rayguard_engine_serving",
        "Engines that take requests now; one that is built or repaired does not.",
        _of_engines(lambda engine: float(engine.serving)),
        unit="engines",
    ),
    gauge(
        "rayguard_standby_ready",
        "Engines beside which a second one waits, at the current weights, to take over within a second.",
        _of_engines(lambda engine: float(engine.standby_ready)),
        unit="engines",
    ),
    counter(
        "rayguard_standby_failures_total",
        "Standby engines that could not be built or died while they waited; the serving one went on.",
        _of_engines(lambda engine: engine.standby_failures),
    ),
    counter(
        "rayguard_audited_answers_total",
        "Answers to greedy requests that were made again and compared (GuardPolicy.audit).",
        _of_engines(lambda engine: engine.audited),
    ),
    counter(
        "rayguard_audited_wrong_total",
        "Audited answers with other tokens than when they were made again: the engine was replaced.",
        _of_engines(lambda engine: engine.audited_wrong),
    ),
    counter(
        "rayguard_spoiled_requests_total",
        "Requests ended with an error since their logits were NaN or infinite (GuardPolicy.check_logits).",
        _of_engines(lambda engine: engine.spoiled),
    ),
    gauge(
        "rayguard_engine_requests_running",
        "Requests in the engines now.",
        _of_engines(lambda engine: engine.requests_running),
        unit="requests",
    ),
    counter(
        "rayguard_tokens_generated_total",
        "Tokens generated, over all epochs of the engines.",
        _of_engines(lambda engine: engine.tokens_generated),
        unit="tokens",
    ),
    counter(
        "rayguard_tokens_saved_total",
        "Tokens of interrupted requests that did not have to be generated again.",
        _over_engines(lambda engine: engine.tokens_saved),
        unit="tokens",
    ),
    counter(
        "rayguard_tokens_lost_total",
        "Tokens of interrupted requests that had to be generated again.",
        _over_engines(lambda engine: engine.tokens_lost),
        unit="tokens",
    ),
    counter(
        "rayguard_calls_total",
        "Calls of guarded and watched classes and tasks.",
        by("target", lambda tally: tally.calls),
    ),
    gauge(
        "rayguard_memory_bytes",
        "Memory that guarded and watched processes share with nobody; the processes of their engines apart.",
        one(lambda tally: tally.memory_bytes),
    ),
    gauge(
        "rayguard_engine_memory_bytes",
        "Private memory of the processes of engines; absent without one.",
        one(lambda tally: tally.engine_memory_bytes or None),
    ),
    gauge(
        "rayguard_memory_forecast_seconds",
        "Until memory runs out, by the nearest forecast; absent while nothing is foreseen.",
        one(lambda tally: tally.memory_forecast_s),
        merge=Merge.MIN,
    ),
    counter(
        "rayguard_memory_reliefs_total",
        "Reliefs of memory, by kind: collect, free, reduce, engine, recycle.",
        by("relief", lambda tally: tally.reliefs),
    ),
    counter(
        "rayguard_memory_relieved_bytes_total",
        "Bytes that reliefs gave back, measured; of a recycled process only its next life knows.",
        by("relief", lambda tally: tally.relieved_bytes),
    ),
    counter(
        "rayguard_guard_errors_total",
        "Errors inside rayguard itself, by the piece that failed; the user's call went on. Should be 0.",
        by("piece", lambda tally: tally.guard_errors),
    ),
    gauge(
        "rayguard_info",
        "Always 1; its label says which rayguard runs.",
        Labelled(("version",), lambda _: [((_version(),), 1.0)]),
        unit="",
        merge=Merge.MAX,
    ),
)
