"""What one alert is, and how it is written down for Prometheus and for promtool's unit tests."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# Reserved, so that it leads to no stranger: give where your copy of docs/ is served to the generator.
DOCS_URL = "https://rayguard.example/docs"
TICK = "1m"  # of the series in the unit tests


class Severity(str, Enum):
    """Whom an alert wakes."""

    CRITICAL = "critical"  # pages: tokens or hours are being lost now
    WARNING = "warning"  # somebody looks at it in working hours


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One unit test: ``series`` by promtool's notation, one value a minute, asked at minute ``at``.

    ``labels`` are those of the alert that must fire; None: it must stay silent. ``said`` gives what a
    template of the annotations must print.
    """

    series: Mapping[str, str]
    at: int
    labels: Mapping[str, str] | None = None
    said: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """A symptom that somebody should know of.

    Invariant: ``fires`` fires it and ``silent`` does not; promtool says so in ``tests/metrics``.
    """

    name: str
    expr: str
    wait: str  # it is so for so long before it is told
    severity: Severity
    summary: str
    description: str
    fires: Case
    silent: tuple[Case, ...]

    @property
    def slug(self) -> str:
        """``RayguardJobStalled`` is told about in ``docs/runbooks/job-stalled.md``."""
        return re.sub(r"(?<!^)([A-Z])", r"-\1", self.name.removeprefix("Rayguard")).lower()

    def annotations(self, docs_url: str = DOCS_URL) -> dict[str, str]:
        """Return what a person is told."""
        url = f"{docs_url}/runbooks/{self.slug}.md"
        return {"summary": self.summary, "description": self.description, "runbook_url": url}


def document(alerts: Iterable[Alert], docs_url: str = DOCS_URL) -> dict[str, Any]:
    """Return the alerts as Prometheus reads them."""
    rules = [
        {
            "alert": one.name,
            "expr": one.expr,
            "for": one.wait,
            "labels": {"severity": one.severity.value},
            "annotations": one.annotations(docs_url),
        }
        for one in alerts
    ]
    return {"groups": [{"name": "rayguard.alerts", "interval": "30s", "rules": rules}]}


def unit_tests(alerts: Iterable[Alert], files: Iterable[str], docs_url: str = DOCS_URL) -> dict[str, Any]:
    """Return promtool's unit tests: each alert fires once and stays silent at least once."""
    tests = [_test(one, case, docs_url) for one in alerts for case in (one.fires, *one.silent)]
    return {"rule_files": list(files), "evaluation_interval": TICK, "tests": tests}


def _test(alert: Alert, case: Case, docs_url: str) -> dict[str, Any]:
    expected: list[dict[str, Any]] = []
    if case.labels is not None:
        labels = {"severity": alert.severity.value, **case.labels}
        told = {name: printed(text, case) for name, text in alert.annotations(docs_url).items()}
        expected = [{"exp_labels": labels, "exp_annotations": told}]
    verb = "fires" if expected else "stays silent"
    return {
        "name": f"{alert.name} {verb}",
        "interval": TICK,
        "input_series": [{"series": series, "values": values} for series, values in case.series.items()],
        "alert_rule_test": [{"eval_time": f"{case.at}m", "alertname": alert.name, "exp_alerts": expected}],
    }


def printed(text: str, case: Case) -> str:
    """Return an annotation as Prometheus prints it for ``case``."""
    labels = case.labels or {}
    text = re.sub(r"{{ \$labels\.(\w+) }}", lambda found: labels.get(found[1], ""), text)
    return re.sub(r"{{ (.+?) }}", lambda found: case.said[found[1]], text)
