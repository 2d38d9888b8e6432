"""What the check found: panels with data, alerts, incidents of the faults, what was left behind."""

from __future__ import annotations

import math
import threading
import time
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from deploy.generate.queries import alert_questions, filled, measured, panel_questions
from rayguard.cluster.supervisor.stories import stories_of
from rayguard.metrics.node import discovery
from rayguard.recovery.journal import Journal
from tests.deploy import checks

if TYPE_CHECKING:
    from rayguard.cluster.supervisor.stories import Story
    from rayguard.recovery.incident import Incident
    from tests.benchmarks.cluster.prometheus import Prometheus
    from tests.benchmarks.cluster.stage import Stage
    from tests.benchmarks.cluster.strikes import Strike

_RANGE, _INTERVAL = "5m", "15s"
_AGAIN_S = 2.0
_MOST_ZEROS = 20  # panels of devices, losses and errors, of which this job has none


def good(told: dict[str, Any]) -> bool:
    """Say whether all that must be is."""
    return (
        told["panels"] == told["panels_with_data"] >= 20
        and len(told["panels_of_zeros"]) <= _MOST_ZEROS
        and told["alerts"] == told["alerts_tested"] >= 8
        and told["alerts_fired_live"] >= 3
        and not told["faults_untold"]
        and not told["faults_misjoined"]
        and not told["endings_amiss"]
        and told["runbooks"] == told["runbooks_ok"] > 0
        and not told["manifests_refused"]
        and not told["left_behind"]
    )


def panels(server: Prometheus, limit_s: float) -> dict[str, Any]:
    """Ask each panel's queries until one has data, or the time is over.

    Some show 0 where there is no series: right where nothing happened, and told apart from what was measured.
    """
    asked: dict[tuple[str, str], list[str]] = defaultdict(list)
    for question in panel_questions():
        asked[question.of, question.name].append(filled(question.expr, range_=_RANGE, interval=_INTERVAL))
    waiting, deadline = set(asked), time.monotonic() + limit_s
    while waiting and time.monotonic() < deadline:
        waiting = {panel for panel in waiting if not any(value(server, one) for one in asked[panel])}
        threading.Event().wait(_AGAIN_S if waiting else 0)
    zeros = {panel for panel in asked if not any(value(server, measured(one)) for one in asked[panel])}
    return {
        "panels": len(asked),
        "panels_with_data": len(asked) - len(waiting),
        "panels_empty": sorted(f"{board}: {name}" for board, name in waiting),
        "panels_of_zeros": sorted(f"{board}: {name}" for board, name in zeros - waiting),
    }


def value(server: Prometheus, query: str) -> list[float]:
    """Return the numbers that ``query`` has now."""
    found = [float(one["value"][1]) for one in server.ask(query)]
    return [number for number in found if not math.isnan(number)]


def alerts(server: Prometheus) -> dict[str, Any]:
    """Return how many alerts there are, and how many Prometheus knows and could evaluate."""
    names = {question.name for question in alert_questions()}
    health = server.rules()
    tested = {name for name in names if health.get(name) == "ok"}
    return {"alerts": len(names), "alerts_tested": len(tested), "alerts_sick": sorted(names - tested)}


def incidents(stage: Stage, struck: list[Strike], limit_s: float) -> dict[str, Any]:
    """Wait until each strike has its incident; say which have none, a wrong one, or several."""
    deadline = time.monotonic() + limit_s
    while True:
        found = journal(stage)
        untold = [problem for strike in struck if (problem := _problem(strike, found))]
        if not untold or time.monotonic() > deadline:
            break
        threading.Event().wait(_AGAIN_S)
    stories = stories_of(found)
    return {
        "plugin_incidents": len(struck) - len(untold),
        "faults": len(struck),
        "faults_untold": untold,
        "faults_misjoined": [problem for strike in struck if (problem := _misjoined(strike, found, stories))],
        "incidents": len(found),
        "stories": len(stories),
    }


def journal(stage: Stage) -> list[Incident]:
    """Return the incidents of all nodes."""
    return [one for home in stage.homes for one in Journal(home).read()]


def _problem(strike: Strike, found: list[Incident]) -> str:
    of_it = _of(strike, found)
    right = [one for one in of_it if one.kind in strike.kinds]
    if len(right) == 1 and (not strike.pid or len(of_it) == 1):
        return ""
    if right and strike.foreseen and len(right) == len(of_it):  # it was told before its end, and at its end
        return ""
    if right and not strike.pid:  # other faults have incidents of this kind, too
        return ""
    return f"{strike.name}: {[(one.kind, one.signature, one.target) for one in of_it]}"


def _of(strike: Strike, found: list[Incident]) -> list[Incident]:
    return [one for one in found if strike.pid in {0, one.pid} and strike.node in {"", one.node}]


def _misjoined(strike: Strike, found: list[Incident], stories: list[Story]) -> str:
    """Say how the fault's story is wrong: there must be one, and it must be called as the fault is."""
    ids = {one.id for one in _of(strike, found) if one.kind in strike.kinds}
    of_it = [story for story in stories if ids & set(story.incidents)]
    if len(of_it) == 1 and of_it[0].kind in strike.kinds:
        return ""
    return f"{strike.name}: {[(one.kind, one.signature, one.target, len(one.incidents)) for one in of_it]}"


def manifests() -> dict[str, Any]:
    """Check every file of deploy/ in each respect in which it can be checked here."""
    counted = checks.count()
    return {
        "manifests_valid": counted.valid,
        "manifests_refused": sorted(counted.refused),
        "manifests_not_checked": sorted(counted.not_checked),
    }


def left_behind(stage: Stage) -> list[str]:
    """Return what is there of rayguard after ``rayguard down``: actors, files for Prometheus."""
    import ray
    from ray.util import list_named_actors

    ray.init(address=stage.address, log_to_driver=False, logging_level="ERROR")
    try:
        named = list_named_actors(all_namespaces=True)
    finally:
        ray.shutdown()
    found = [one["name"] for one in named if one["namespace"] == "_rayguard"]
    file = stage.temp_folder / discovery.FILE
    return found + ([file.name] if file.exists() else [])
