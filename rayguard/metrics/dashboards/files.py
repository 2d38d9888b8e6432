"""All files that are generated for Prometheus, Grafana and people on call, as text by path."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import yaml

from rayguard.metrics import alert, rules
from rayguard.metrics.alerts import alerts
from rayguard.metrics.dashboards.boards import boards
from rayguard.metrics.dashboards.render import TAG, render

if TYPE_CHECKING:
    from pathlib import Path

    from rayguard.metrics.alert import Alert

MADE_BY = "Made by `python -m rayguard.metrics.dashboards`: change rayguard/metrics instead."
BY_HAND = "<!-- From here on written by hand. -->"
RULES, ALERTS = "rayguard.rules.yml", "rayguard.alerts.yml"


def files(root: Path, docs_url: str = alert.DOCS_URL) -> dict[str, str]:
    """Return the files by their path below ``root``; of a runbook there, what was written by hand is kept."""
    prometheus = {
        RULES: rules.document(),
        ALERTS: alert.document(alerts(), docs_url),
        "rayguard.alerts.test.yml": alert.unit_tests(alerts(), (RULES, ALERTS), docs_url),
    }
    provisioning = {"datasources": _data_source(), "dashboards": _provider()}
    return {
        **{f"deploy/prometheus/{name}": _yaml(content) for name, content in prometheus.items()},
        **{f"deploy/grafana/dashboards/{one.uid}.json": render(one, docs_url) for one in boards()},
        **{
            f"deploy/grafana/provisioning/{kind}/rayguard.yaml": _yaml(of)
            for kind, of in provisioning.items()
        },
        **{path(one): _runbook(one, root / path(one)) for one in alerts()},
        "docs/runbooks/README.md": _index(),
    }


def path(one: Alert) -> str:
    """Return where an alert's runbook is."""
    return f"docs/runbooks/{one.slug}.md"


def _yaml(content: dict[str, Any]) -> str:
    return f"# {MADE_BY}\n" + yaml.safe_dump(content, sort_keys=False, width=10_000)


def _data_source() -> dict[str, Any]:
    source = {
        "name": "Prometheus",
        "type": "prometheus",
        "access": "proxy",
        "url": "$RAYGUARD_PROMETHEUS_URL",
        "isDefault": True,
        "jsonData": {"timeInterval": "15s"},  # of scrapes: $__rate_interval is made from it
    }
    return {"apiVersion": 1, "datasources": [source]}


def _provider() -> dict[str, Any]:
    provider = {
        "name": TAG,
        "folder": TAG,
        "type": "file",
        "allowUiUpdates": False,
        "options": {"path": "/var/lib/grafana/dashboards/rayguard"},
    }
    return {"apiVersion": 1, "providers": [provider]}


def _runbook(one: Alert, page: Path) -> str:
    _, _, by_hand = page.read_text(encoding="utf-8").partition(BY_HAND) if page.exists() else ("", "", "\n")
    summary, description = (alert.printed(text, one.fires) for text in (one.summary, one.description))
    head = (
        f"# {one.name}\n\n<!-- {MADE_BY} -->\n\n"
        f"> **{summary}.** {description}\n\n"
        f"So it reads, for example. Severity `{one.severity.value}`, told after `{one.wait}` of:\n\n"
        f"```promql\n{one.expr}\n```\n\n"
    )
    return head + BY_HAND + by_hand


def _index() -> str:
    rows = [f"| [{one.name}]({one.slug}.md) | {one.severity.value} | `{one.wait}` |\n" for one in alerts()]
    return (
        f"# Runbooks\n\n<!-- {MADE_BY} -->\n\n"
        "One page for each alert of `deploy/prometheus/rayguard.alerts.yml`: what it means, where to look,\n"
        "what to do, and when it is no fault. `critical` pages a person; `warning` waits for the morning.\n\n"
        "| alert | severity | told after |\n|---|---|---|\n" + "".join(rows)
    )
