"""What a pool shows to Prometheus: true numbers, at the endpoint of the process that owns it."""

from __future__ import annotations

import urllib.request
from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from rayguard import errors
from rayguard.metrics import exporter as exporter_module
from rayguard.metrics.exporter import TallyCollector
from rayguard.metrics.instruments.pool_tally import POOLS
from rayguard.pool.actors.messages import ActorReport, CallFailed
from rayguard.pool.gcs_watch import Notices
from rayguard.pool.values.policy import PoolPolicy
from rayguard.recovery.budget import RestartBudget
from rayguard.recovery.tally import TALLY

POOL = "RolloutPool(scripted)"
PROMPTS = [[n, n + 1, 5] for n in range(24)]
LONG = {"max_tokens": 200}
SLOW = {"turn_s": 0.01}


@pytest.fixture(autouse=True)
def _pools_of_this_test_only(tmp_path, monkeypatch):
    monkeypatch.setenv("RAYGUARD_HOME", str(tmp_path / "home"))  # for the incidents of actors with an id
    POOLS.begin_again()
    yield
    for exporter in list(exporter_module._exporters):
        exporter.close()


@pytest.fixture
def number():
    """Read one number as Prometheus would."""
    registry = CollectorRegistry()
    registry.register(TallyCollector())
    return lambda name, **labels: registry.get_sample_value(f"rayguard_pool_{name}", {"pool": POOL, **labels})


def test_requests_are_counted_by_how_they_ended(stage, number):
    """Each once, and how long it waited."""
    play = stage(engines=1, capacity=4, turn_s=0.02)
    play.pool.generate(PROMPTS[:6], {"max_tokens": 4}, ids=[str(n) for n in range(6)])
    play.pool.generate(PROMPTS[:6], {"max_tokens": 4}, ids=[str(n) for n in range(6)])  # remembered
    play.pool.generate([[1]], {"nonsense": 1}, partial="shrink")
    play.pool.generate([[1]], LONG, deadline_s=0.1, partial="shrink")
    reading = play.pool.as_completed([[1], [2]], [{"max_tokens": 1}, LONG])
    next(reading)
    reading.close()
    play.until(lambda: not play.core.book.entries)
    ended = {o: number("requests_total", outcome=o) for o in ("delivered", "refused", "late", "cancelled")}
    assert ended == {"delivered": 7, "refused": 1, "late": 1, "cancelled": 1}
    assert number("requests_total", outcome="failed") == 0
    assert number("queue_wait_seconds_count") == 10
    assert number("queue_wait_seconds_sum") >= 2 * 0.02, "two of six waited for the others' end"
    play.pool.submit([3], LONG)
    play.working("rollout-0")
    play.pool.close()
    assert number("requests_total", outcome="failed") == 1


def test_what_is_there_is_read_when_asked(stage, number):
    """Engines by state, requests waiting and running; nothing of a pool that was closed."""
    play = stage(engines=2, capacity=4, **SLOW)
    for prompt in PROMPTS:
        play.pool.submit(prompt, {"max_tokens": 2_000})
    play.working("rollout-0")
    assert (number("requests_waiting"), number("requests_running")) == (16, 8)
    states = ("starting", "serving", "fenced", "draining", "replacing", "lost")
    assert [number("engines", state=s) for s in states] == [0, 2, 0, 0, 0, 0]
    play.script.start_s = 1_000
    play.pool.resize(3)
    assert number("engines", state="starting") == 1
    play.pool.close()
    assert [number("engines", state=s) for s in states] == [0] * 6
    assert number("hires_total", reason="start") == 2
    assert number("hires_total", reason="resize") == 1


def test_losses_and_interruptions_by_kind(stage, number):
    """Death, standstill, node: each by its name, with the tokens that were kept."""
    play = stage(engines=3, policy=PoolPolicy(progress=False, hang_stopped_s=0.5), **SLOW)
    futures = [play.pool.submit(prompt, LONG) for prompt in PROMPTS]
    for name in ("rollout-0", "rollout-1", "rollout-2"):
        play.working(name)

    def strike():
        play.staff.kill("rollout-0")
        play.members["rollout-1"].freeze()
        play.members["rollout-2"].die()
        connection = play.core.connections["rollout-2"]
        connection.hello = replace(connection.hello, actor_id="a2")
        Notices(play.core, 1.0).died("a2", connection.hello.pid, "its node", innocent=True)

    play.on_loop(strike)
    generations = [future.result(20) for future in futures]
    play.right(generations, PROMPTS, LONG)
    kinds = ("actor_died", "node_died", "engine_hang")
    assert [number("losses_total", kind=k) for k in kinds] == [1, 1, 1]
    cut = [number("interruptions_total", kind=k) for k in kinds]
    assert all(cut)
    assert number("tokens_saved_total") == play.pool.status()["tokens_saved"] > 0
    assert sum(cut) >= sum(bool(s.cuts) for g in generations for s in g.samples)
    assert number("queue_wait_seconds_count") == len(PROMPTS), "the wait for another engine is no second one"


def test_what_moves_without_a_loss_is_told_apart(stage, number):
    """Dismissed before it was done; refused by an engine that lives."""
    play = stage(policy=PoolPolicy(progress=False, drain_s=0.0), **SLOW)
    futures = [play.pool.submit(prompt, LONG, request_id=str(n)) for n, prompt in enumerate(PROMPTS)]
    play.working("rollout-0")
    held = play.on_loop(lambda: len(play.core.book.slots["rollout-0"].running))
    play.pool.drain("rollout-0")

    def refuse():
        name = next(iter(play.core.book.slots["rollout-1"].running))
        report = ActorReport(events=(CallFailed(name, RuntimeError("no"), retry=True),))
        play.core.heard("rollout-1", report.events, report)

    play.on_loop(refuse)
    assert number("interruptions_total", kind="drained") == held
    assert number("interruptions_total", kind="retried") == 1
    assert number("hires_total", reason="drain") == 1
    play.right([future.result(20) for future in futures], PROMPTS, LONG)
    assert number("losses_total", kind="unknown") is None, "nobody was lost"


def test_replacements_and_what_is_lost(stage, number):
    """Counted as hires; a place that was given up is a state."""
    once = RestartBudget(max_restarts=1, within_s=1_000.0)
    play = stage(engines=1, policy=PoolPolicy(progress=False, replace=once))
    for name in ("rollout-0", "rollout-1"):
        play.until(lambda n=name: n in play.core.book.slots)
        play.on_loop(lambda n=name: (play.members[n].die(for_good=True), play.staff._gone[n]("killed")))
        play.until(lambda n=name: n not in play.core.connections)
    play.until(lambda: play.core.fleet.lost)
    assert number("hires_total", reason="replacement") == 1
    assert number("engines", state="lost") == 1


def test_weight_updates_and_pushes(stage, number):
    """One update of all engines, a push to each; those that are refused as well."""
    play = stage(weights="1")
    play.script.weights = "2"
    play.pool.update_weights()
    assert number("weight_update_seconds_count") == 1
    assert number("weight_pushes_total", outcome="taken") == 2
    play.script.refuse_weights = "NaN"
    with pytest.raises(errors.WeightsError):
        play.pool.update_weights()
    assert number("weight_update_seconds_count") == 1
    assert number("weight_pushes_total", outcome="failed") >= 2


def test_it_is_served_where_the_settings_say(stage, monkeypatch):
    """Like those of a guarded actor: by the process that owns the pool; off unless asked for."""
    monkeypatch.delenv("RAYGUARD_METRICS_PORT", raising=False)
    assert stage().pool.status()["metrics_url"] == ""
    monkeypatch.setenv("RAYGUARD_METRICS_PORT", "0")
    play = stage()
    play.pool.generate(PROMPTS)
    url = play.pool.status()["metrics_url"]
    with urllib.request.urlopen(url, timeout=10) as page:
        families = {f.name: f for f in text_string_to_metric_families(page.read().decode())}
    delivered = [s for s in families["rayguard_pool_requests"].samples if s.labels["outcome"] == "delivered"]
    assert [(s.labels["pool"], s.value) for s in delivered] == [(POOL, len(PROMPTS))]


def test_settings_that_cannot_be_used_cost_only_the_metrics(stage, monkeypatch):
    """Counted; the pool works."""
    monkeypatch.setenv("RAYGUARD_METRICS_PORT", "many")
    before = TALLY.guard_errors["metrics"]
    play = stage()
    play.right(play.pool.generate(PROMPTS), PROMPTS)
    assert TALLY.guard_errors["metrics"] == before + 1
