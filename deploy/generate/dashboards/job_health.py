"""The first row of the overview: is the job healthy, in six numbers and two curves."""

from __future__ import annotations

from functools import partial

from deploy.generate.alerts import rules
from deploy.generate.alerts.promql import (
    JOB,
    gauge,
    least,
    number_of,
    or_zero,
    rate,
    total,
)
from deploy.generate.dashboards.board import Colour, Draw, Panel, Query, Unit

RANGE, RATE = "$__range", "$__rate_interval"
FIRING = 'ALERTS{alertname=~"Rayguard.*", alertstate="firing"}'
BAD = ((1, Colour.RED),)
LOW_IS_BAD = ((0.9, Colour.ORANGE), (0.95, Colour.GREEN))
ACTORS = (
    ("alive", Colour.GREEN),
    ("pending", Colour.YELLOW),
    ("restarting", Colour.ORANGE),
    ("dead", Colour.GREY),
)


def job_health() -> tuple[Panel, ...]:
    """Return its panels."""
    return (*_numbers(), *_health())


def _numbers() -> tuple[Panel, ...]:
    number = partial(Panel, draw=Draw.NUMBER, width=4, height=4)
    return (
        number(
            title="Alerts firing",
            about=(
                "Alerts of rayguard that fire now. The list is below under What broke; each alert links "
                "its runbook."
            ),
            queries=(Query(or_zero(number_of(FIRING)), "Alerts firing"),),
            steps=BAD,
        ),
        number(
            title="Open stories",
            about=(
                "Causes at work now; one may have many incidents. `rayguard incidents` tells each in a "
                "sentence."
            ),
            queries=(Query(total(gauge("rayguard_job_stories_open", JOB)), "Open stories"),),
            steps=((1, Colour.ORANGE),),
            runbook="incident-open",
        ),
        number(
            title="Training time (ETTR)",
            about=(
                "Share of the time range in which no incident was open. Below 95 %: see what broke most "
                "often."
            ),
            queries=(Query(rules.ettr(RANGE, JOB), "Training time (ETTR)"),),
            unit=Unit.SHARE,
            colour=Colour.RED,
            steps=LOW_IS_BAD,
            runbook="training-time-low",
        ),
        number(
            title="Goodput",
            about=(
                "Share of the generated tokens that did not have to be generated again; 1 where none "
                "were lost."
            ),
            queries=(Query(rules.goodput(RANGE, JOB), "Goodput"),),
            unit=Unit.SHARE,
            colour=Colour.RED,
            steps=LOW_IS_BAD,
        ),
        number(
            title="Restarts left",
            about=(
                "Share of the job's restart budget that is left; it fills again with time. See what broke."
            ),
            queries=(Query(least(gauge("rayguard_job_restart_budget_ratio", JOB)), "Restarts left"),),
            unit=Unit.SHARE,
            colour=Colour.RED,
            steps=((0.25, Colour.ORANGE), (0.5, Colour.GREEN)),
            runbook="restart-budget-low",
        ),
        number(
            title="Crash loops",
            about="Actors that died again and again for one cause, and were stopped. Fix the cause.",
            queries=(Query(total(gauge("rayguard_job_crash_loops", JOB)), "Crash loops"),),
            steps=BAD,
            runbook="crash-loop",
        ),
    )


def _health() -> tuple[Panel, ...]:
    return (
        Panel(
            title="Progress",
            about=(
                "Calls and answered requests per second, and tokens per second on the right. All at 0 with "
                "live actors: the job stands still."
            ),
            queries=(
                Query(or_zero(total(rate("rayguard_calls_total", RATE, JOB))), "calls"),
                Query(or_zero(total(rate("rayguard_pool_requests_total", RATE, JOB))), "answered requests"),
                Query(
                    or_zero(total(rate("rayguard_tokens_generated_total", RATE, JOB))),
                    "tokens per second (right)",
                    Unit.COUNT,
                ),
            ),
            unit=Unit.REQUESTS,
            runbook="job-stalled",
            width=12,
        ),
        Panel(
            title="Actors by state",
            about="Actors of the job as Ray has them. Many that restart: look at what broke.",
            queries=(Query(total(gauge("rayguard_job_actors", JOB), "state"), "{{state}}"),),
            draw=Draw.STACK,
            names=ACTORS,
            width=12,
        ),
    )
