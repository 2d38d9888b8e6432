"""Queries cannot ask for what does not exist; recording rules are named well and Prometheus takes them."""

import re
import shutil
import subprocess

import pytest
import yaml

from deploy.generate.alerts import promql, rules
from deploy.generate.alerts.promql import ADDED_LABELS
from deploy.generate.queries import (
    alert_questions,
    filled,
    panel_questions,
    rule_questions,
    sooner,
)
from rayguard.errors import ConfigError
from rayguard.metrics.instruments.instrument import MetricType
from rayguard.metrics.sources import known
from tests.deploy.generate.promql_reading import asked, faults

PROMTOOL = shutil.which("promtool")
ALL = [*panel_questions(), *rule_questions(), *alert_questions()]
NOT_ASKED = {
    "rayguard_info": "the agents' versions are shown",
    "rayguard_engine_epoch": "restarts are counted; the number itself is for `rayguard status`",
    "rayguard_audited_answers_total": "what was wrong in an audit is shown; how many were right is for who asks",
}


def test_queries_ask_for_what_there_is_and_read_it_as_what_it_is():
    """Names, labels of matchers and groupings; counters by their growth, histograms by their parts."""
    assert all(asked(filled(one.expr)) for one in ALL)
    assert {one: wrong for one in ALL if (wrong := faults(filled(one.expr)))} == {}


@pytest.mark.parametrize(
    ("expr", "fault"),
    [
        ("sum(rate(rayguard_call_total[5m]))", "there is no rayguard_call_total"),
        ("rayguard_calls_total", "rayguard_calls_total is read without rate() or increase()"),
        ("rate(rayguard_memory_bytes[5m])", "rayguard_memory_bytes is a gauge and has no rate"),
        ('rate(rayguard_calls_total{engine="a"}[5m])', "rayguard_calls_total has no label engine"),
        ("sum by (pool) (rate(rayguard_calls_total[5m]))", "rayguard_calls_total has no label pool"),
        (
            "rayguard_recovery_seconds",
            "rayguard_recovery_seconds is a histogram: ask for its _bucket, _sum or _count",
        ),
        (
            "rayguard_recovery_seconds_count",
            "rayguard_recovery_seconds_count is read without rate() or increase()",
        ),
        ("rayguard_job:ettr:ratio2h < 1", "there is no rayguard_job:ettr:ratio2h"),
        ("deriv(rayguard_memory_bytes[5m])", "deriv is no function here"),
    ],
)
def test_the_reading_of_queries_sees_what_is_wrong(expr, fault):
    """The test above can fail."""
    assert fault in faults(expr)


@pytest.mark.parametrize(
    ("write", "arguments", "where"),
    [
        (promql.gauge, ("rayguard_memory_byte",), {}),
        (promql.gauge, ("rayguard_calls_total",), {}),
        (promql.rate, ("rayguard_memory_bytes", "5m"), {}),
        (promql.observed, ("rayguard_calls_total", "5m"), {}),
        (promql.gauge, ("rayguard_memory_bytes",), {"state": "dead"}),
        (promql.gauge, ("rayguard_memory_bytes", {"node": "=~$node"}), {}),
    ],
)
def test_a_query_that_makes_no_sense_is_not_written(write, arguments, where):
    """An unknown name or label, or a use that the type does not allow, is an error where it is written."""
    with pytest.raises(ConfigError, match=arguments[0]):
        write(*arguments, **where)


def test_a_renamed_instrument_stops_the_generation(monkeypatch):
    """What the name of a metric is, is said once."""
    renamed = {name: one for name, one in known().items() if name != "rayguard_calls_total"}
    monkeypatch.setattr(promql, "known", lambda: renamed)
    with pytest.raises(ConfigError, match="rayguard_calls_total"):
        rules.progress("5m")


def test_all_that_is_measured_is_shown_or_said_why_not():
    """A number that nobody sees is not worth its cost."""
    shown = {one.base for question in ALL for one in asked(filled(question.expr))}
    assert set(known()) - shown == set(NOT_ASKED)


def test_no_instrument_has_a_label_that_prometheus_would_overwrite():
    """`job` and `instance` are those of the scrape."""
    taken = {"job", "instance"}
    assert {one.name for one in known().values() if taken & set(one.labels)} == set()
    assert taken < set(ADDED_LABELS)


def test_recording_rules_are_named_by_level_metric_and_operation():
    """As Prometheus asks; each name once, each with the labels that it says."""
    records = [one.record for one in rules.recordings()]
    assert len(set(records)) == len(records)
    for one in rules.recordings():
        assert re.fullmatch(r"rayguard_(job|instance):[a-z_]+:[a-z0-9_]+", one.record)
        assert one.help.endswith(".")
        assert set(re.findall(r"by \(([^)]*)\)", one.expr)) <= {
            ", ".join(one.labels),
            ", ".join((*one.labels, "le")),
        }


@pytest.mark.skipif(PROMTOOL is None, reason="promtool comes with Debian's package `prometheus`")
def test_prometheus_takes_every_query(tmp_path):
    """Those of panels too, as Grafana fills them in; and rules made sixty times as fast."""
    panels = [
        {"record": f"panel:number:{number}", "expr": filled(one.expr)}
        for number, one in enumerate(panel_questions())
    ]
    documents = [{"groups": [{"name": "panels", "rules": panels}]}, sooner(rules.document(), 60)]
    paths = []
    for number, document in enumerate(documents):
        paths.append(tmp_path / f"{number}.yml")
        paths[-1].write_text(yaml.safe_dump(document), encoding="utf-8")
    ran = subprocess.run(
        [PROMTOOL, "check", "rules", *paths], capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert f"{len(panels)} rules found" in ran.stdout


def test_a_counter_that_begins_with_its_first_event_is_counted_whole():
    """``increase`` alone would never see a first crash."""
    wrote = promql.grown("rayguard_incidents_total", "15m", kind="host_oom")
    series = 'rayguard_incidents_total{kind="host_oom"}'
    assert wrote == f"(({series} unless {series} offset 15m) or increase({series}[15m]))"


def test_a_histogram_has_a_mean_only_where_something_was_measured():
    """0/0 would be NaN, which no comparison of an alert removes."""
    assert promql.mean("rayguard_recovery_seconds", "1h").endswith("> 0)")


def test_sooner_is_the_same_rules_in_less_time():
    """Windows, waits and offsets shrink; windows stay long enough for two scrapes, thresholds stay."""
    rule = {"expr": "max_over_time(x[20m] offset 10m) > 20 and rate(y[1m]) > 0", "for": "5m"}
    [group] = sooner({"groups": [{"name": "a", "interval": "30s", "rules": [rule]}]}, 60)["groups"]
    assert group["rules"] == [
        {"expr": "max_over_time(x[20s] offset 10s) > 20 and rate(y[5s]) > 0", "for": "5s"}
    ]


def test_grafanas_variables_are_filled_in():
    """A job by name, and everything where none is named."""
    query = filled('rate(x{ray_job=~"$ray_job", instance=~"$instance"}[$__rate_interval])', ray_job="02")
    assert query == 'rate(x{ray_job=~"02", instance=~".*"}[1m])'
    assert not any("$" in filled(one.expr) for one in panel_questions())


def test_counters_that_the_node_adds_up_are_counters():
    """The node's and the job's instruments are in the one list that queries look into."""
    assert known()["rayguard_job_interrupted_seconds_total"].type is MetricType.COUNTER
    assert known()["rayguard_node_memory_used_bytes"].type is MetricType.GAUGE
