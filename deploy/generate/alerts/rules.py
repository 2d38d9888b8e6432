"""What rayguard promises, as queries; and the recording rules that keep them.

Dashboards ask the same queries over their own time range and so need no rules; the rules make them cheap over
weeks, and alerts stand on some. A rule is named ``level:metric:operation``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from deploy.generate.alerts.promql import (
    EVERYWHERE,
    Scope,
    gauge,
    grown,
    increase,
    lately,
    least,
    mean,
    most,
    quantile,
    rate,
    total,
)

EVERY = "30s"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingRule:
    """A query that Prometheus answers all the time, under a name of its own."""

    record: str
    expr: str
    help: str
    labels: tuple[str, ...] = ()


def ettr(window: str, scope: Scope = EVERYWHERE, *by: str) -> str:
    """Share of a job's time in which no incident of it was open: effective training time ratio, 0-1."""
    interrupted = total(increase("rayguard_job_interrupted_seconds_total", window, scope), *by)
    wall = total(increase("rayguard_job_wall_seconds_total", window, scope), *by)
    return f"clamp_min(1 - {interrupted} / ({wall} > 0), 0)"


def goodput(window: str, scope: Scope = EVERYWHERE, *by: str) -> str:
    """Share of the generated tokens that did not have to be generated again, 0-1; 1 where none were lost."""
    lost = total(increase("rayguard_tokens_lost_total", window, scope), *by)
    generated = total(increase("rayguard_tokens_generated_total", window, scope), *by)
    # A job without engines has no series of generated tokens, and has lost none.
    return f"clamp_min(1 - {lost} / clamp_min({generated} or {lost}, 1), 0)"


def mttr(window: str, scope: Scope = EVERYWHERE, *by: str) -> str:
    """Mean time to recovery, in seconds; nothing where nothing recovered."""
    return mean("rayguard_recovery_seconds", window, by, scope)


def progress(window: str, scope: Scope = EVERYWHERE, *by: str) -> str:
    """Calls, tokens and answered requests per second: only whether it is zero means much."""
    names = ("rayguard_calls_total", "rayguard_tokens_generated_total", "rayguard_pool_requests_total")
    return total(" or ".join(rate(name, window, scope) for name in names), *by)  # their labels differ


def headroom(scope: Scope = EVERYWHERE, window: str = "") -> str:
    """Share of a node's memory that is free, 0-1. Ray begins to kill at 0.05."""
    return (
        f"1 - {_share('rayguard_node_memory_used_bytes', 'rayguard_node_memory_limit_bytes', scope, window)}"
    )


def store_used(scope: Scope = EVERYWHERE, window: str = "") -> str:
    """Share of a node's object store that is in use, 0-1."""
    used, limit = "rayguard_node_object_store_used_bytes", "rayguard_node_object_store_limit_bytes"
    return _share(used, limit, scope, window)


def _share(used: str, limit: str, scope: Scope, window: str) -> str:
    """Divide two gauges of a node; ``window`` bridges the moment in which its agent is restarted."""
    part, whole = (lately(one, window, scope) if window else gauge(one, scope) for one in (used, limit))
    return f"{most(part, 'instance')} / {most(whole, 'instance')}"


INCIDENT_LABELS = ("ray_job", "kind", "scope", "remedy", "outcome")


@lru_cache(maxsize=1)
def recordings() -> tuple[RecordingRule, ...]:
    """Return all recording rules."""
    job = ("ray_job",)
    return (
        RecordingRule(
            record="rayguard_job:ettr:ratio1h",
            expr=ettr("1h", EVERYWHERE, *job),
            help="Share of the last hour of the job in which no incident of it was open.",
            labels=job,
        ),
        RecordingRule(
            record="rayguard_job:goodput:ratio1h",
            expr=goodput("1h", EVERYWHERE, *job),
            help="Share of the tokens of the last hour that did not have to be generated again.",
            labels=job,
        ),
        RecordingRule(
            record="rayguard_job:recovery_seconds:mean1h",
            expr=mttr("1h", EVERYWHERE, *job),
            help="MTTR over the last hour; absent where nothing recovered.",
            labels=job,
        ),
        RecordingRule(
            record="rayguard_job:detection_seconds:p99_1h",
            expr=quantile(0.99, "rayguard_detection_seconds", "1h", job),
            help="99 of 100 faults of the last hour were detected within so many seconds.",
            labels=job,
        ),
        RecordingRule(
            record="rayguard_job:progress:rate15m",
            expr=progress("15m", EVERYWHERE, *job),
            help="Calls, tokens and answered requests per second: 0 means that nothing moves.",
            labels=job,
        ),
        RecordingRule(
            record="rayguard_job:calls:rate5m",
            expr=total(rate("rayguard_calls_total", "5m"), *job),
            help="Calls through the guard per second.",
            labels=job,
        ),
        RecordingRule(
            record="rayguard_job:tokens_generated:rate5m",
            expr=total(rate("rayguard_tokens_generated_total", "5m"), *job),
            help="Tokens generated per second.",
            labels=job,
        ),
        RecordingRule(
            record="rayguard_job:incidents:increase15m",
            expr=total(grown("rayguard_incidents_total", "15m", proved=True), *INCIDENT_LABELS),
            help="Incidents that closed within 15 minutes, the first of its kind included.",
            labels=INCIDENT_LABELS,
        ),
        RecordingRule(
            record="rayguard_job:restart_budget:min",
            expr=least(lately("rayguard_job_restart_budget_ratio", "5m"), *job),
            help="Share of the restart budget that is left; outlives a restart of the supervisor.",
            labels=job,
        ),
        RecordingRule(
            record="rayguard_instance:memory_headroom:ratio",
            expr=headroom(window="1m"),
            help="Share of the node's memory that is free. Ray kills below 0.05.",
            labels=("instance",),
        ),
        RecordingRule(
            record="rayguard_instance:object_store_used:ratio",
            expr=store_used(window="1m"),
            help="Share of the node's object store in use.",
            labels=("instance",),
        ),
    )


def document() -> dict[str, Any]:
    """Return the recording rules as Prometheus reads them."""
    rules = [{"record": one.record, "expr": one.expr} for one in recordings()]
    return {"groups": [{"name": "rayguard.rules", "interval": EVERY, "rules": rules}]}
