"""The list of instruments: well named, bounded, and what the documentation says."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.generate.metrics_page import markdown
from rayguard.metrics.instruments.instrument import Merge, MetricType
from rayguard.metrics.instruments.job import JOB_INSTRUMENTS
from rayguard.metrics.instruments.node import NODE_INSTRUMENTS
from rayguard.metrics.instruments.objects import OBJECT_INSTRUMENTS
from rayguard.metrics.instruments.pool import POOL_INSTRUMENTS
from rayguard.metrics.instruments.pool_tally import PoolNow, PoolReading, PoolTally
from rayguard.metrics.instruments.process import INSTRUMENTS
from rayguard.metrics.sources import known
from rayguard.objects.holdings import Holdings
from rayguard.recovery.tally import Durations, Tally

EVERY = tuple(known().values())
SET_RULES = {
    "rayguard_engine_rung": Merge.MAX,
    "rayguard_engine_epoch": Merge.MAX,
    "rayguard_memory_forecast_seconds": Merge.MIN,
}
DOCS = Path(__file__).parents[3] / "docs" / "metrics.md"


@pytest.mark.parametrize("instrument", EVERY, ids=lambda one: one.name)
def test_names_follow_the_rules(instrument):
    """``rayguard_<noun>``; counters, and only they, end in ``_total``; durations in ``_seconds``."""
    assert re.fullmatch(r"rayguard_[a-z]+(_[a-z]+)*", instrument.name)
    assert instrument.name.endswith("_total") == (instrument.type is MetricType.COUNTER)
    unit = instrument.name.removesuffix("_total")
    assert unit.endswith("_seconds") == (instrument.unit == "seconds")
    assert unit.endswith("_bytes") == (instrument.unit == "bytes")
    assert instrument.help.endswith(".")


def test_names_are_unique():
    """Two with one name would hide each other."""
    lists = (INSTRUMENTS, OBJECT_INSTRUMENTS, POOL_INSTRUMENTS, NODE_INSTRUMENTS, JOB_INSTRUMENTS)
    assert sum(map(len, lists)) == len(EVERY)


@pytest.mark.parametrize("instrument", EVERY, ids=lambda one: one.name)
def test_no_label_is_one_that_a_scrape_adds(instrument):
    """Prometheus would rename it, or lose its own; and ``le`` and what is around it are the client's."""
    assert not {"job", "instance", "le", "quantile"} & set(instrument.labels)


def test_gauges_that_would_lie_as_a_sum_are_none():
    """Two processes in epoch 3 are not in epoch 6; the nearest forecast is the one that counts."""
    rules = {one.name: one.merge for one in EVERY if one.merge is not Merge.SUM}
    assert {name: rules[name] for name in SET_RULES} == SET_RULES
    assert all(rules[one.name] is Merge.MAX for one in EVERY if one.name.endswith("_info"))
    assert all(one.type is MetricType.GAUGE for one in EVERY if one.name in rules)


def test_no_label_is_unbounded():
    """An id or a message in a label makes a time series of each incident."""
    allowed = {
        "kind",
        "scope",
        "remedy",
        "outcome",
        "engine",
        "target",
        "piece",
        "version",
        "relief",
        "ray_job",
    }
    of_pools = {"pool", "state", "outcome", "kind", "reason"}
    assert {label for one in INSTRUMENTS for label in one.labels} == allowed
    assert {label for one in OBJECT_INSTRUMENTS for label in one.labels} == set()
    assert {label for one in POOL_INSTRUMENTS for label in one.labels} == of_pools
    of_nodes = {"place", "device", "actor_class", "ray_job", "kind", "version", "ray_version"}
    assert {label for one in NODE_INSTRUMENTS for label in one.labels} <= of_nodes
    assert {label for one in JOB_INSTRUMENTS for label in one.labels} <= {"kind", "scope", "state"}


@pytest.mark.parametrize("instrument", INSTRUMENTS, ids=lambda one: one.name)
def test_each_reads_its_own_labels(instrument):
    """As many values as labels, and a histogram reads durations."""
    tally = Tally()
    tally.engine("rollout")
    tally.calls["Rollout"] += 1
    tally.guard_error("journal")
    tally.incidents["k", "s", "r", "o", "j"] += 1
    tally.relieved("collect", 5)
    tally.memory_is(private=9, engine=7, forecast_s=30.0)
    _check(instrument, tally)


@pytest.mark.parametrize("instrument", OBJECT_INSTRUMENTS, ids=lambda one: one.name)
def test_each_of_references_reads_its_own_labels(instrument):
    """The same of references."""
    _check(instrument, Holdings())


@pytest.mark.parametrize("instrument", POOL_INSTRUMENTS, ids=lambda one: one.name)
def test_each_of_a_pool_reads_its_own_labels(instrument):
    """The same of a pool."""
    tally = PoolTally("RolloutPool(Rollout)")
    tally.losses["actor_died"] += 1
    tally.interrupted("actor_died", 2)
    _check(instrument, {tally.name: PoolReading(tally, PoolNow())})


def _check(instrument, source):
    readings = list(instrument.read(source))
    assert readings
    for values, number in readings:
        assert len(values) == len(instrument.labels)
        assert isinstance(number, Durations) == (instrument.type is MetricType.HISTOGRAM)


def test_the_documentation_is_current():
    """After a change: ``python -m deploy.generate``."""
    assert DOCS.read_text(encoding="utf-8") == markdown()


def test_the_command_writes_the_documentation(tmp_path):
    """The command that the test above names."""
    subprocess.run([sys.executable, "-m", "deploy.generate", tmp_path], timeout=60, check=True)
    assert (tmp_path / "docs/metrics.md").read_text(encoding="utf-8") == markdown()


def test_the_list_needs_no_prometheus():
    """Dashboards are generated from it where no client library is installed."""
    code = "import sys, rayguard.metrics.instruments.process; assert 'prometheus_client' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], timeout=60, check=True)
