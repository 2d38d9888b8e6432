"""The overview, for a person at 3 a.m.: is the job healthy, what broke, what was done, what does it cost."""

from __future__ import annotations

from deploy.generate.alerts import rules
from deploy.generate.alerts.promql import (
    JOB,
    NODE,
    grown,
    increase,
    number_of,
    or_zero,
    quantile,
    rate,
    total,
)
from deploy.generate.dashboards.board import Board, Colour, Draw, Panel, Query, Row, Unit
from deploy.generate.dashboards.job_health import BAD, FIRING, job_health

RANGE, RATE = "$__range", "$__rate_interval"


def overview() -> Board:
    """Return the dashboard."""
    return Board(
        uid="rayguard-overview",
        title="rayguard / Overview",
        about="Is the job healthy, what broke, what was done about it, and what did it cost.",
        rows=(
            Row("Is the job healthy?", job_health()),
            Row("What broke?", _broken()),
            Row("What was done?", _done()),
            Row("What does it cost?", _cost()),
        ),
    )


def _broken() -> tuple[Panel, ...]:
    return (
        Panel(
            title="Stories by cause",
            about=(
                "New causes in the time range, by kind and scope: one per cause, however many actors it took."
            ),
            queries=(
                Query(
                    or_zero(
                        total(grown("rayguard_job_stories_total", RANGE, JOB), "kind", "scope"),
                        kind="none",
                        scope="so far",
                    ),
                    "{{kind}} ({{scope}})",
                ),
            ),
            draw=Draw.BARS,
            colour=Colour.BLUE,
        ),
        Panel(
            title="Incidents by kind",
            about="Incidents that closed. What a kind means and what to do: docs/why-did-my-actor-die.md.",
            queries=(
                Query(
                    or_zero(total(grown("rayguard_incidents_total", RATE, JOB), "kind"), kind="none"),
                    "{{kind}}",
                ),
            ),
            draw=Draw.STACK,
        ),
        Panel(
            title="Alerts firing, by name",
            about="Which alerts fired when: red is firing. Each has a page in docs/runbooks.",
            queries=(Query(or_zero(number_of(FIRING, "alertname"), alertname="no alert"), "{{alertname}}"),),
            draw=Draw.TIMELINE,
            steps=BAD,
        ),
    )


def _done() -> tuple[Panel, ...]:
    return (
        Panel(
            title="Remedies and how they ended",
            about=(
                "What was done about the incidents of the time range. `failed`: it did not help, look at "
                "the story."
            ),
            queries=(
                Query(
                    or_zero(
                        total(grown("rayguard_incidents_total", RANGE, JOB), "remedy", "outcome"),
                        remedy="nothing",
                        outcome="so far",
                    ),
                    "{{remedy}}: {{outcome}}",
                ),
            ),
            draw=Draw.BARS,
            colour=Colour.BLUE,
            runbook="recovery-failed",
            width=7,
        ),
        Panel(
            title="Time to detect",
            about=(
                "From the fault to its detection, over the time range. 99 % are meant to take at most "
                "half a second."
            ),
            queries=(
                Query(quantile(0.5, "rayguard_detection_seconds", RANGE, (), JOB), "half"),
                Query(quantile(0.99, "rayguard_detection_seconds", RANGE, (), JOB), "99 %"),
            ),
            draw=Draw.NUMBER,
            unit=Unit.SECONDS,
            steps=((0.5, Colour.ORANGE), (10, Colour.RED)),
            width=5,
        ),
        Panel(
            title="Time to recover (MTTR)",
            about=(
                "From detection to serving again, over the time range. Long: a standby engine makes it a "
                "second."
            ),
            queries=(
                Query(rules.mttr(RANGE, JOB), "mean"),
                Query(quantile(0.95, "rayguard_recovery_seconds", RANGE, (), JOB), "95 %"),
            ),
            draw=Draw.NUMBER,
            unit=Unit.SECONDS,
            steps=((60, Colour.ORANGE), (300, Colour.RED)),
            width=5,
        ),
        Panel(
            title="What was set right",
            about=(
                "Engines rebuilt, memory given back, leftovers of dead processes removed: all without "
                "anybody."
            ),
            queries=(
                Query(or_zero(total(grown("rayguard_engine_restarts_total", RATE, JOB))), "engines rebuilt"),
                Query(or_zero(total(grown("rayguard_memory_reliefs_total", RATE, JOB))), "memory reliefs"),
                Query(
                    or_zero(total(grown("rayguard_leftovers_reaped_total", RATE, NODE))), "leftovers reaped"
                ),
            ),
            draw=Draw.STACK,
            width=7,
        ),
    )


def _cost() -> tuple[Panel, ...]:
    return (
        Panel(
            title="Time interrupted",
            about="Seconds of the time range in which an incident was open.",
            queries=(
                Query(
                    total(increase("rayguard_job_interrupted_seconds_total", RANGE, JOB)), "Time interrupted"
                ),
            ),
            draw=Draw.NUMBER,
            width=4,
            unit=Unit.SECONDS,
            colour=Colour.BLUE,
            height=6,
        ),
        Panel(
            title="Tokens of interrupted requests",
            about=(
                "Saved: kept and continued. Lost: generated again. Engines lose those of requests that had "
                "to begin afresh, pools also the last few steps before an actor's death."
            ),
            queries=(
                Query(total(increase("rayguard_tokens_saved_total", RANGE, JOB)), "saved by engines"),
                Query(
                    or_zero(total(increase("rayguard_pool_tokens_saved_total", RANGE, JOB))), "saved by pools"
                ),
                Query(total(increase("rayguard_tokens_lost_total", RANGE, JOB)), "lost by engines"),
                Query(
                    or_zero(total(increase("rayguard_pool_tokens_lost_total", RANGE, JOB))), "lost by pools"
                ),
            ),
            draw=Draw.NUMBER,
            colour=Colour.BLUE,
            height=6,
        ),
        Panel(
            title="What rayguard itself takes",
            about="CPU cores of all agents together. More than a tenth of a core a node: please tell us.",
            queries=(Query(total(rate("rayguard_agent_cpu_seconds_total", RATE, NODE)), "all agents"),),
            unit=Unit.CORES,
            width=6,
            height=6,
        ),
        Panel(
            title="Errors in rayguard itself",
            about=(
                "Should be 0. The job goes on as it would without; the logs of the workers have the "
                "tracebacks."
            ),
            queries=(
                Query(
                    or_zero(
                        total(grown("rayguard_guard_errors_total", RATE, JOB), "piece"), piece="no error"
                    ),
                    "{{piece}}",
                ),
            ),
            steps=BAD,
            runbook="guard-errors",
            width=6,
            height=6,
        ),
    )
