"""What is measured of a ``RolloutPool``: a part of ``rayguard.metrics.instruments.process``, which see."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from rayguard.metrics.instruments.instrument import Instrument, Labelled, counter, gauge, histogram
from rayguard.metrics.instruments.pool_tally import Hire, PoolEngineState, PoolReading, Push, RequestOutcome

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from enum import Enum

    from rayguard.recovery.tally import Durations

Pools: TypeAlias = "Mapping[str, PoolReading]"


def _each(number: Callable[[PoolReading], float | Durations]) -> Labelled[Pools]:
    return Labelled(("pool",), lambda pools: [((name,), number(pool)) for name, pool in pools.items()])


def _by(
    label: str, numbers: Callable[[PoolReading], Mapping[str, int]], known: type[Enum] | None = None
) -> Labelled[Pools]:
    """Read by ``label``; all ``known`` ones are there from the start, so that rate() sees the first."""
    zeros = {one.value: 0 for one in known or ()}

    def read(pools: Pools) -> list[tuple[tuple[str, str], int]]:
        counts = {name: {**zeros, **numbers(pool)} for name, pool in pools.items()}
        return [((name, one), count) for name, its in counts.items() for one, count in its.items()]

    return Labelled(("pool", label), read)


POOL_INSTRUMENTS: tuple[Instrument[Pools], ...] = (
    gauge(
        "rayguard_pool_engines",
        "Engines of the pool: `replacing` waits to be hired anew, `lost` ended for good and is not.",
        _by("state", lambda pool: pool.now.engines, PoolEngineState),
    ),
    gauge(
        "rayguard_pool_requests_waiting",
        "Requests that wait for an engine now.",
        _each(lambda pool: pool.now.waiting),
        unit="requests",
    ),
    gauge(
        "rayguard_pool_requests_running",
        "Requests that are with an engine now.",
        _each(lambda pool: pool.now.running),
        unit="requests",
    ),
    counter(
        "rayguard_pool_requests_total",
        "Requests that ended, by how. One that was asked for again with its id counts once.",
        _by(
            "outcome",
            lambda pool: {RequestOutcome.DELIVERED.value: pool.tally.delivered, **pool.tally.unanswered},
            RequestOutcome,
        ),
    ),
    histogram(
        "rayguard_pool_queue_wait_seconds",
        "From the moment a request was accepted until it was first given to an engine.",
        _each(lambda pool: pool.tally.wait_s),
    ),
    counter(
        "rayguard_pool_losses_total",
        "Lives of actors that ended under the pool, by the kind of what ended them.",
        _by("kind", lambda pool: pool.tally.losses),
    ),
    counter(
        "rayguard_pool_interruptions_total",
        "Requests that were cut while they ran, by the kind of what cut them; others went on with them.",
        _by("kind", lambda pool: pool.tally.interruptions),
        unit="requests",
    ),
    counter(
        "rayguard_pool_tokens_saved_total",
        "Tokens of interrupted requests that the pool kept for the engine that went on with them.",
        _each(lambda pool: pool.tally.tokens_saved),
        unit="tokens",
    ),
    counter(
        "rayguard_pool_tokens_lost_total",
        "Tokens of interrupted requests to be generated again; without those that nobody could count.",
        _each(lambda pool: pool.tally.tokens_lost),
        unit="tokens",
    ),
    histogram(
        "rayguard_pool_resume_seconds",
        "From the loss of an actor's life until the first of its requests had its next token.",
        _each(lambda pool: pool.tally.resume_s),
    ),
    histogram(
        "rayguard_pool_replacement_seconds",
        "From the loss of an actor's life until another one served in its place, at the current weights.",
        _each(lambda pool: pool.tally.replace_s),
    ),
    histogram(
        "rayguard_pool_weight_update_seconds",
        "One weight update of all engines, waiting for running requests included.",
        _each(lambda pool: pool.tally.update_s),
    ),
    counter(
        "rayguard_pool_weight_pushes_total",
        "Pushes of weights to one engine, by outcome.",
        _by("outcome", lambda pool: pool.tally.pushes, Push),
    ),
    counter(
        "rayguard_pool_hires_total",
        "Actors hired: `replacement` is for one that was dead for good.",
        _by("reason", lambda pool: pool.tally.hires, Hire),
        unit="actors",
    ),
)
