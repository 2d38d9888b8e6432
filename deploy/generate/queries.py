"""Every question that dashboards, recording rules and alerts ask, for whoever puts them to a real Prometheus.

``make check-deploy`` does: each panel must have data, each alert be known. Time is short there, and
``sooner`` makes the same rules sixty times as fast.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from deploy.generate.alerts.job_alerts import alerts
from deploy.generate.alerts.rules import recordings
from deploy.generate.dashboards.boards import boards

_UNITS_S = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
_ZERO = re.compile(r' or (on \(\) (label_replace\()+)?vector\(0\)(, "\w+", "[^"]*", "", ""\))*')
_DURATION = re.compile(r"(?<=\[)(\d+)([smhd])(?=\])|(?<=offset )(\d+)([smhd])\b")


@dataclass(frozen=True, slots=True)
class Question:
    """One query: of a panel of the board ``of``, of a recording rule, or of an alert (``of`` is empty)."""

    of: str
    name: str
    expr: str
    instant: bool = True


def panel_questions() -> list[Question]:
    """Return the queries of all panels, several for some: a panel has data when one of them has."""
    return [
        Question(board.uid, panel.title, query.expr, panel.instant)
        for board in boards()
        for panel in board.panels
        for query in panel.queries
    ]


def rule_questions() -> list[Question]:
    """Return the queries of all recording rules."""
    return [Question("", one.record, one.expr) for one in recordings()]


def alert_questions() -> list[Question]:
    """Return the queries of all alerts."""
    return [Question("", one.name, one.expr) for one in alerts()]


def filled(expr: str, *, range_: str = "1h", interval: str = "1m", **variables: str) -> str:
    """Return a panel's query as Grafana sends it: all jobs and nodes where ``variables`` name none."""
    values = {"__rate_interval": interval, "__range": range_, "ray_job": ".*", "instance": ".*", **variables}
    return re.sub(r"\$(\w+)", lambda found: values[found[1]], expr)


def measured(expr: str) -> str:
    """Return a panel's query without the 0 that it shows where there is no series."""
    return _ZERO.sub("", expr)


def sooner(document: dict[str, Any], times: float, least_s: int = 5) -> dict[str, Any]:
    """Return rules or alerts whose windows and waits are ``times`` shorter, windows at least ``least_s``.

    Thresholds stay, so a leak or a budget must still be as large as in earnest.
    """
    groups = [
        {
            **group,
            "interval": "1s",
            "rules": [
                {
                    **rule,
                    "expr": _DURATION.sub(lambda found: _shorter(found, times, least_s), rule["expr"]),
                    **({"for": f"{_seconds(rule['for']) / times:.0f}s"} if "for" in rule else {}),
                }
                for rule in group["rules"]
            ],
        }
        for group in document["groups"]
    ]
    return {"groups": groups}


def _shorter(found: re.Match[str], times: float, least_s: int) -> str:
    whole = "".join(part for part in found.groups() if part)
    return f"{max(least_s, round(_seconds(whole) / times))}s"


def _seconds(duration: str) -> int:
    return int(duration[:-1]) * _UNITS_S[duration[-1]]
