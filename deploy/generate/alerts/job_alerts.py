"""The alerts, on symptoms: a job that stands still, a budget nearly gone, weights that are stale.

They page for what a person must do something about. What rayguard cures itself is an incident, and no alert.
Those of memory and nodes are ``deploy.generate.alerts.node_alerts``.
"""

from __future__ import annotations

from functools import lru_cache

from deploy.generate.alerts.alert import Alert, Case, Severity
from deploy.generate.alerts.ended_jobs import stops_with_job
from deploy.generate.alerts.node_alerts import node_alerts
from deploy.generate.alerts.promql import grown, increase, lately, most, rate, total
from rayguard.metrics.instruments.pool_tally import PoolEngineState, Push, RequestOutcome
from rayguard.recovery.incident import Outcome
from rayguard.recovery.remedy import UNTRIED

JOB = 'ray_job="01000000"'
ON = 'instance="10.0.0.1:9400"'
UP = {f'up{{job="rayguard", {ON}}}': "1x60"}
IS_JOB = {"ray_job": "01000000"}
BUDGET = "rayguard_job_restart_budget_ratio"
POOL = "RolloutPool(Rollout)"


@lru_cache(maxsize=1)
def alerts() -> tuple[Alert, ...]:
    """Return all alerts."""
    of_jobs = (*_job_alerts(), *_work_alerts())
    return (*map(stops_with_job, of_jobs), *node_alerts())


def _job_alerts() -> tuple[Alert, ...]:
    alive = total(lately("rayguard_processes", "5m"), "ray_job")
    calls = f'rayguard_calls_total{{{JOB}, {ON}, target="Rollout"}}'
    alive_series = f'rayguard_processes{{{JOB}, {ON}, actor_class="Rollout"}}'
    interrupted = f"rayguard_job_interrupted_seconds_total{{{JOB}, {ON}}}"
    wall = f"rayguard_job_wall_seconds_total{{{JOB}, {ON}}}"
    return (
        Alert(
            name="RayguardJobStalled",
            expr=(
                "rayguard_job:progress:rate15m == 0"
                " and max_over_time(rayguard_job:progress:rate15m[1h]) > 0"
                f" and on (ray_job) {alive} > 0"
            ),
            wait="5m",
            severity=Severity.CRITICAL,
            summary="Job {{ $labels.ray_job }} stands still",
            description=(
                "Its processes are alive, and for 20 minutes no call returned, no token was generated and no "
                "request was answered. It did so within the hour before."
            ),
            fires=Case(series={calls: "0+60x20 1200x40", alive_series: "4x60"}, at=45, labels=IS_JOB),
            silent=(
                Case(series={calls: "0+60x60", alive_series: "4x60"}, at=45),
                # a job that is over: what it counted stays, its processes do not
                Case(series={calls: "0+60x20 1200x40", alive_series: "4x20 _x40"}, at=45),
            ),
        ),
        Alert(
            name="RayguardIncidentOpen",
            expr=f"{total(rate('rayguard_job_interrupted_seconds_total', '15m'), 'ray_job')} > 0.9",
            wait="1m",
            severity=Severity.CRITICAL,
            summary="Job {{ $labels.ray_job }} has not recovered for a quarter of an hour",
            description=(
                "An incident is open all the time, one or one after the other: the cure does not hold."
            ),
            fires=Case(series={interrupted: "0+60x60"}, at=30, labels=IS_JOB),
            silent=(Case(series={interrupted: "0+20x60"}, at=30),),
        ),
        Alert(
            name="RayguardRestartBudgetLow",
            expr="rayguard_job:restart_budget:min < 0.25",
            wait="1m",
            severity=Severity.CRITICAL,
            summary="Job {{ $labels.ray_job }} has {{ $value | humanizePercentage }} of its restarts left",
            description=(
                "At 0 the supervisor tells so in an incident, and with `on_spent: stop` it ends every actor "
                "that restarts again."
            ),
            fires=Case(
                series={f"{BUDGET}{{{JOB}, {ON}}}": "1 0.5 0.2x20"},
                at=10,
                labels=IS_JOB,
                said={"$value | humanizePercentage": "20%"},
            ),
            silent=(Case(series={f"{BUDGET}{{{JOB}, {ON}}}": "1 0.2 0.6x20"}, at=15),),
        ),
        Alert(
            name="RayguardCrashLoop",
            expr=f"{most(lately('rayguard_job_crash_loops', '5m'), 'ray_job')} > 0",
            wait="0m",
            severity=Severity.CRITICAL,
            summary="Job {{ $labels.ray_job }}: {{ $value }} actors are in a crash loop",
            description="They died again and again for one and the same cause. No restart cures that.",
            fires=Case(
                # told through the death of the supervisor that tells it
                series={f"rayguard_job_crash_loops{{{JOB}, {ON}}}": "0 0 2 2 _ _ _"},
                at=6,
                labels=IS_JOB,
                said={"$value": "2"},
            ),
            silent=(Case(series={f"rayguard_job_crash_loops{{{JOB}, {ON}}}": "0x10"}, at=6),),
        ),
        Alert(
            name="RayguardTrainingTimeLow",
            expr="rayguard_job:ettr:ratio1h < 0.9",
            wait="10m",
            severity=Severity.WARNING,
            summary=(
                "Job {{ $labels.ray_job }} trained for only {{ $value | humanizePercentage }} of the "
                "last hour"
            ),
            description=(
                "Recoveries work, and take more than a tenth of its time: look at what breaks so often."
            ),
            fires=Case(
                series={interrupted: "0+12x60", wall: "0+60x60"},
                at=40,
                labels=IS_JOB,
                said={"$value | humanizePercentage": "80%"},
            ),
            silent=(Case(series={interrupted: "0+3x60", wall: "0+60x60"}, at=40),),
        ),
    )


def _work_alerts() -> tuple[Alert, ...]:
    fenced = total(
        lately("rayguard_pool_engines", "2m", state=PoolEngineState.FENCED.value), "ray_job", "pool"
    )
    refused = total(
        increase("rayguard_pool_weight_pushes_total", "10m", outcome=Push.FAILED.value), "ray_job", "pool"
    )
    unanswered = "|".join(
        one.value for one in (RequestOutcome.FAILED, RequestOutcome.LATE, RequestOutcome.QUARANTINED)
    )
    requests = total(
        increase("rayguard_pool_requests_total", "15m", outcome=f"=~{unanswered}"),
        "ray_job",
        "pool",
        "outcome",
    )
    engines = f'rayguard_pool_engines{{{JOB}, {ON}, pool="{POOL}", state="fenced"}}'
    pushes = f'rayguard_pool_weight_pushes_total{{{JOB}, {ON}, pool="{POOL}", outcome="failed"}}'
    ended = f'rayguard_pool_requests_total{{{JOB}, {ON}, pool="{POOL}", outcome="%s"}}'
    of_engine = 'kind="engine_dead", scope="engine", remedy="restart"'
    incidents = f'rayguard_incidents_total{{{JOB}, {ON}, {of_engine}, outcome="%s"}}'
    untried = f'rayguard_incidents_total{{{JOB}, {ON}, kind="actor_died", remedy="%s", outcome="failed"}}'
    failed = f'outcome="{Outcome.FAILED.value}", remedy!~"{"|".join(UNTRIED)}"'
    ended_so = f"rayguard_job:incidents:increase15m{{{failed}}}"
    begun_anew = f'rayguard_job:incidents:increase15m{{outcome="{Outcome.STATE_LOST.value}"}}'
    errors = grown("rayguard_guard_errors_total", "15m", proved=True)
    of_pool = {**IS_JOB, "pool": POOL}
    return (
        Alert(
            name="RayguardStaleWeights",
            expr=f"{fenced} > 0 or {refused} >= 3",
            wait="5m",
            severity=Severity.CRITICAL,
            summary="{{ $labels.pool }}: engines do not get the current weights",
            description=(
                "They are fenced, so that no stale sample is made, and the pool is slower by them; or three "
                "pushes within ten minutes failed. Value: {{ $value | humanize }}."
            ),
            fires=Case(series={engines: "0x5 1x30"}, at=15, labels=of_pool, said={"$value | humanize": "1"}),
            silent=(
                Case(series={engines: "0x5 1x2 0x30"}, at=15),
                Case(series={pushes: "0x5 1x30"}, at=15),
            ),
        ),
        Alert(
            name="RayguardRequestsLost",
            expr=f"{requests} > 0",
            wait="0m",
            severity=Severity.WARNING,
            summary="{{ $labels.pool }}: requests ended as {{ $labels.outcome }}, without an answer",
            description=(
                "About {{ $value | humanize }} in 15 minutes. Their callers got an error that says why."
            ),
            fires=Case(
                series={ended % "late": "0x5 4x30"},
                at=10,
                labels={**of_pool, "outcome": "late"},
                said={"$value | humanize": "4"},
            ),
            silent=(Case(series={ended % "delivered": "0+9x30", ended % "late": "0x30"}, at=10),),
        ),
        Alert(
            name="RayguardRecoveryFailed",
            expr=f"{total(ended_so, 'ray_job', 'kind', 'scope')} > 0",
            wait="0m",
            severity=Severity.WARNING,
            summary="Job {{ $labels.ray_job }}: {{ $labels.kind }} was not cured",
            description=(
                "{{ $value | humanize }} incidents of scope {{ $labels.scope }} ended without recovery, "
                "though something was tried."
            ),
            fires=Case(
                # the first of its kind: its series begins at 1
                series={**UP, incidents % "failed": "_x30 1x30"},
                at=35,
                labels={**IS_JOB, "kind": "engine_dead", "scope": "engine"},
                said={"$value | humanize": "1"},
            ),
            silent=(
                Case(series={**UP, incidents % "recovered": "_x30 1x30"}, at=35),
                # a worker that is only watched died, or a driver was killed: nothing was to be tried
                *(Case(series={**UP, untried % remedy: "_x30 1x30"}, at=35) for remedy in UNTRIED),
                # a Prometheus that has just begun: what it finds is not new
                Case(
                    series={f'up{{job="rayguard", {ON}}}': "_x30 1x30", incidents % "failed": "_x30 1x30"},
                    at=35,
                ),
            ),
        ),
        Alert(
            name="RayguardStateLost",
            expr=f"{total(begun_anew, 'ray_job', 'kind')} > 0",
            wait="0m",
            severity=Severity.WARNING,
            summary="Job {{ $labels.ray_job }}: an actor lost state that it had ({{ $labels.kind }})",
            description=(
                "{{ $value | humanize }} times in 15 minutes Ray began an actor anew, as its user asked, or "
                "it goes on from an older state. The job goes on, and its results may be wrong."
            ),
            fires=Case(
                series={**UP, incidents % "state_lost": "_x30 1x30"},
                at=35,
                labels={**IS_JOB, "kind": "engine_dead"},
                said={"$value | humanize": "1"},
            ),
            silent=(Case(series={**UP, incidents % "recovered": "_x30 1x30"}, at=35),),
        ),
        Alert(
            name="RayguardGuardErrors",
            expr=f"{total(errors, 'ray_job', 'piece')} >= 3",
            wait="0m",
            severity=Severity.WARNING,
            summary="rayguard itself fails in {{ $labels.piece }}",
            description=(
                "{{ $value | humanize }} errors in 15 minutes. The job goes on as it would without rayguard, "
                "and is less protected. The workers' logs have the tracebacks."
            ),
            fires=Case(
                series={**UP, f'rayguard_guard_errors_total{{{JOB}, {ON}, piece="journal"}}': "_x30 7x30"},
                at=35,
                labels={**IS_JOB, "piece": "journal"},
                said={"$value | humanize": "7"},
            ),
            silent=(
                Case(
                    series={**UP, f'rayguard_guard_errors_total{{{JOB}, {ON}, piece="journal"}}': "7x60"},
                    at=35,
                ),
            ),
        ),
    )
