"""Engines and rollouts: who serves, what waits, how old the weights are, what faults cost in tokens.

A job without engines or pools has none of these series: there, 0 is what is true, and is drawn.
"""

from __future__ import annotations

from deploy.generate.alerts.promql import (
    JOB,
    gauge,
    grown,
    increase,
    mean,
    most,
    observed,
    or_zero,
    quantile,
    rate,
    spent,
    total,
)
from deploy.generate.dashboards.board import Board, Colour, Draw, Panel, Query, Row, Unit

RANGE, RATE = "$__range", "$__rate_interval"
POOL = (
    ("serving", Colour.GREEN),
    ("starting", Colour.BLUE),
    ("draining", Colour.YELLOW),
    ("fenced", Colour.YELLOW),
    ("replacing", Colour.ORANGE),
    ("lost", Colour.RED),
)
OUTCOMES = (("delivered", Colour.GREEN), ("quarantined", Colour.ORANGE), ("failed", Colour.RED))
WAIT, UPDATE = "rayguard_pool_queue_wait_seconds", "rayguard_pool_weight_update_seconds"
RESUME, REPLACE = "rayguard_pool_resume_seconds", "rayguard_pool_replacement_seconds"


def engines() -> Board:
    """Return the dashboard."""
    return Board(
        uid="rayguard-engines",
        title="rayguard / Engines and rollouts",
        about=(
            "Which engines serve, what waits for them, whether their weights are current, what faults cost."
        ),
        rows=(
            Row("Do the engines serve?", _serving()),
            Row("Do the rollouts flow?", _requests()),
            Row("Are the weights current?", _weights()),
            Row("What did faults cost?", _faults()),
        ),
    )


def _serving() -> tuple[Panel, ...]:
    return (
        Panel(
            title="Engines of pools by state",
            about=(
                "`fenced` lives and waits for current weights, `lost` is not replaced. All are to be "
                "`serving`."
            ),
            queries=(
                Query(
                    or_zero(total(gauge("rayguard_pool_engines", JOB), "state"), state="no pool"), "{{state}}"
                ),
            ),
            draw=Draw.STACK,
            names=POOL,
            runbook="stale-weights",
        ),
        Panel(
            title="Engines that serve",
            about=(
                "Engines that take requests now, in pools and outside, and spares that wait at current "
                "weights."
            ),
            queries=(
                Query(
                    or_zero(total(gauge("rayguard_engine_serving", JOB), "engine"), engine="no engine"),
                    "{{engine}}",
                ),
                Query(or_zero(total(gauge("rayguard_standby_ready", JOB))), "standbys"),
            ),
        ),
        Panel(
            title="Safe settings in force",
            about=(
                "0 is full speed. Higher rungs are safer and slower; they come down by themselves "
                "without faults."
            ),
            queries=(
                Query(
                    or_zero(most(gauge("rayguard_engine_rung", JOB), "engine"), engine="no engine"),
                    "{{engine}}",
                ),
            ),
            steps=((1, Colour.ORANGE), (4, Colour.RED)),
        ),
    )


def _requests() -> tuple[Panel, ...]:
    return (
        Panel(
            title="Tokens per second",
            about="Generated tokens, by engine. It falls to 0 in a weight update, and must come back.",
            queries=(
                Query(
                    or_zero(
                        total(rate("rayguard_tokens_generated_total", RATE, JOB), "engine"),
                        engine="no engine",
                    ),
                    "{{engine}}",
                ),
            ),
            draw=Draw.STACK,
        ),
        Panel(
            title="Requests in pools",
            about=(
                "Many waiting and few running: engines are missing. None of both: the trainer asks for "
                "nothing."
            ),
            queries=(
                Query(or_zero(total(gauge("rayguard_pool_requests_running", JOB))), "running"),
                Query(or_zero(total(gauge("rayguard_pool_requests_waiting", JOB))), "waiting"),
                Query(or_zero(total(gauge("rayguard_engine_requests_running", JOB))), "in engines"),
            ),
        ),
        Panel(
            title="Requests ended, by outcome",
            about="All are to be `delivered`. `quarantined` killed several engines: look at these prompts.",
            queries=(
                Query(
                    or_zero(
                        total(rate("rayguard_pool_requests_total", RATE, JOB), "outcome"), outcome="no pool"
                    ),
                    "{{outcome}}",
                ),
            ),
            draw=Draw.STACK,
            unit=Unit.REQUESTS,
            names=OUTCOMES,
            runbook="requests-lost",
        ),
        Panel(
            title="Waiting for an engine",
            about="Seconds that requests waited; `given out` says how many a second. 0 while there are none.",
            queries=(
                Query(f"{quantile(0.5, WAIT, RATE, (), JOB)} >= 0 or vector(0)", "half at most"),
                Query(f"{quantile(0.95, WAIT, RATE, (), JOB)} >= 0 or vector(0)", "95 % at most"),
                Query(or_zero(total(observed(WAIT, RATE, JOB))), "given out (right)", Unit.REQUESTS),
            ),
            unit=Unit.SECONDS,
        ),
        Panel(
            title="Calls",
            about="Calls of guarded and watched classes. One at 0 while others go on has stopped working.",
            queries=(
                Query(
                    or_zero(total(rate("rayguard_calls_total", RATE, JOB), "target"), target="no call"),
                    "{{target}}",
                ),
            ),
            unit=Unit.REQUESTS,
        ),
        Panel(
            title="Memory of engines",
            about="Private memory of the engines' own processes. One that only grows will be rebuilt.",
            queries=(
                Query(
                    or_zero(
                        total(gauge("rayguard_engine_memory_bytes", JOB), "actor_class"),
                        actor_class="no engine",
                    ),
                    "{{actor_class}}",
                ),
            ),
            draw=Draw.STACK,
            unit=Unit.BYTES,
        ),
    )


def _weights() -> tuple[Panel, ...]:
    return (
        Panel(
            title="Weight pushes by outcome",
            about=(
                "One push is to one engine. An engine whose push failed is fenced until it has the weights."
            ),
            queries=(
                Query(
                    or_zero(
                        total(increase("rayguard_pool_weight_pushes_total", RATE, JOB), "outcome"),
                        outcome="no push",
                    ),
                    "{{outcome}}",
                ),
            ),
            draw=Draw.STACK,
            names=(("taken", Colour.GREEN), ("failed", Colour.RED)),
            runbook="stale-weights",
            width=12,
        ),
        Panel(
            title="Time in weight updates",
            about=(
                "Share of the time in which the engines take weights instead of requests, and how long "
                "one takes."
            ),
            queries=(
                Query(or_zero(total(spent(UPDATE, RATE, JOB))), "share of the time"),
                Query(or_zero(mean(UPDATE, RATE, (), JOB)), "one update (right)", Unit.SECONDS),
            ),
            unit=Unit.SHARE,
            width=12,
        ),
    )


def _faults() -> tuple[Panel, ...]:
    return (
        Panel(
            title="Engines lost and hired",
            about="Lives of actors that ended under a pool, and actors hired in their place.",
            queries=(
                Query(
                    or_zero(total(grown("rayguard_pool_losses_total", RANGE, JOB), "kind"), kind="none"),
                    "lost: {{kind}}",
                ),
                Query(
                    or_zero(total(grown("rayguard_pool_hires_total", RANGE, JOB), "reason"), reason="none"),
                    "hired: {{reason}}",
                ),
                Query(
                    or_zero(total(grown("rayguard_engine_restarts_total", RANGE, JOB))), "rebuilt in place"
                ),
                Query(
                    or_zero(total(grown("rayguard_standby_failures_total", RANGE, JOB))), "standbys failed"
                ),
                Query(or_zero(total(grown("rayguard_audited_wrong_total", RANGE, JOB))), "wrong in an audit"),
                Query(
                    or_zero(total(grown("rayguard_spoiled_requests_total", RANGE, JOB))),
                    "requests ended for NaN",
                ),
            ),
            draw=Draw.BARS,
            colour=Colour.BLUE,
            width=6,
        ),
        Panel(
            title="Requests interrupted",
            about=(
                "Requests that were cut while they ran, by what cut them. Others went on with them: none "
                "is lost."
            ),
            queries=(
                Query(
                    or_zero(
                        total(grown("rayguard_pool_interruptions_total", RANGE, JOB), "kind"), kind="none"
                    ),
                    "{{kind}}",
                ),
            ),
            draw=Draw.BARS,
            colour=Colour.BLUE,
            width=6,
        ),
        Panel(
            title="Tokens saved and lost",
            about="Tokens of interrupted requests: kept for whoever went on, or to be generated again.",
            queries=(
                Query(total(increase("rayguard_tokens_saved_total", RATE, JOB)), "saved by engines"),
                Query(
                    or_zero(total(increase("rayguard_pool_tokens_saved_total", RATE, JOB))), "saved by pools"
                ),
                Query(total(increase("rayguard_tokens_lost_total", RATE, JOB)), "lost by engines"),
                Query(
                    or_zero(total(increase("rayguard_pool_tokens_lost_total", RATE, JOB))), "lost by pools"
                ),
            ),
            draw=Draw.STACK,
            width=6,
        ),
        Panel(
            title="After an actor's loss",
            about="Until the first of its requests went on, and until another actor served; the mean.",
            queries=(
                Query(or_zero(mean(RESUME, RATE, (), JOB)), "went on"),
                Query(or_zero(mean(REPLACE, RATE, (), JOB)), "another one served"),
            ),
            unit=Unit.SECONDS,
            width=6,
        ),
    )
