"""What is measured of a ``RolloutPool``: a part of ``rayguard.metrics.instruments``, which see."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from rayguard.metrics.instrument import Instrument, MetricType
from rayguard.metrics.pool_tally import EngineState, Hire, PoolReading, Push, RequestOutcome

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from enum import Enum

    from rayguard.metrics.instrument import Values
    from rayguard.recovery.tally import Durations

Pools: TypeAlias = "Mapping[str, PoolReading]"


def _each(
    number: Callable[[PoolReading], float | Durations],
) -> Callable[[Pools], Iterable[tuple[Values, float | Durations]]]:
    return lambda pools: [((name,), number(pool)) for name, pool in pools.items()]


def _by(
    numbers: Callable[[PoolReading], Mapping[str, int]], known: type[Enum] | None = None
) -> Callable[[Pools], Iterable[tuple[Values, float]]]:
    """Read numbers by label; all ``known`` labels are there from the start, so that rate() sees the first."""
    zeros = {one.value: 0 for one in known or ()}
    return lambda pools: [
        ((name, label), count)
        for name, pool in pools.items()
        for label, count in {**zeros, **numbers(pool)}.items()
    ]


POOL_INSTRUMENTS: tuple[Instrument[Pools], ...] = (
    Instrument(
        name="rayguard_pool_engines",
        type=MetricType.GAUGE,
        help="Engines of the pool: `replacing` waits to be hired anew, `lost` ended for good and is not.",
        labels=("pool", "state"),
        unit="engines",
        read=_by(lambda pool: pool.now.engines, EngineState),
    ),
    Instrument(
        name="rayguard_pool_requests_waiting",
        type=MetricType.GAUGE,
        help="Requests that wait for an engine now.",
        labels=("pool",),
        unit="requests",
        read=_each(lambda pool: pool.now.waiting),
    ),
    Instrument(
        name="rayguard_pool_requests_running",
        type=MetricType.GAUGE,
        help="Requests that are with an engine now.",
        labels=("pool",),
        unit="requests",
        read=_each(lambda pool: pool.now.running),
    ),
    Instrument(
        name="rayguard_pool_requests_total",
        type=MetricType.COUNTER,
        help="Requests that ended, by how. One that was asked for again with its id counts once.",
        labels=("pool", "outcome"),
        unit="requests",
        read=_by(
            lambda pool: {RequestOutcome.DELIVERED.value: pool.tally.delivered, **pool.tally.unanswered},
            RequestOutcome,
        ),
    ),
    Instrument(
        name="rayguard_pool_queue_wait_seconds",
        type=MetricType.HISTOGRAM,
        help="From the moment a request was accepted until it was first given to an engine.",
        labels=("pool",),
        unit="seconds",
        read=_each(lambda pool: pool.tally.wait_s),
    ),
    Instrument(
        name="rayguard_pool_losses_total",
        type=MetricType.COUNTER,
        help="Lives of actors that ended under the pool, by the kind of what ended them.",
        labels=("pool", "kind"),
        unit="losses",
        read=_by(lambda pool: pool.tally.losses),
    ),
    Instrument(
        name="rayguard_pool_interruptions_total",
        type=MetricType.COUNTER,
        help="Requests that were cut while they ran, by the kind of what cut them; others went on with them.",
        labels=("pool", "kind"),
        unit="requests",
        read=_by(lambda pool: pool.tally.interruptions),
    ),
    Instrument(
        name="rayguard_pool_tokens_saved_total",
        type=MetricType.COUNTER,
        help="Tokens of interrupted requests that the pool kept for the engine that went on with them.",
        labels=("pool",),
        unit="tokens",
        read=_each(lambda pool: pool.tally.tokens_saved),
    ),
    Instrument(
        name="rayguard_pool_weight_update_seconds",
        type=MetricType.HISTOGRAM,
        help="One weight update of all engines, waiting for running requests included.",
        labels=("pool",),
        unit="seconds",
        read=_each(lambda pool: pool.tally.update_s),
    ),
    Instrument(
        name="rayguard_pool_weight_pushes_total",
        type=MetricType.COUNTER,
        help="Pushes of weights to one engine, by outcome.",
        labels=("pool", "outcome"),
        unit="pushes",
        read=_by(lambda pool: pool.tally.pushes, Push),
    ),
    Instrument(
        name="rayguard_pool_hires_total",
        type=MetricType.COUNTER,
        help="Actors hired: `replacement` is for one that was dead for good.",
        labels=("pool", "reason"),
        unit="actors",
        read=_by(lambda pool: pool.tally.hires, Hire),
    ),
)
