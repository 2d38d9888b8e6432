"""The endpoint: true numbers at scrape time, and nothing that can hurt the process it lives in."""

import logging
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from importlib.metadata import version

import pytest
from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.parser import text_string_to_metric_families

from rayguard.errors import ConfigError
from rayguard.harmless import harmless
from rayguard.metrics import exporter as exporter_module
from rayguard.metrics.configured import serve_as_configured
from rayguard.metrics.exporter import TallyCollector, serve_metrics
from rayguard.metrics.instruments.objects import OBJECT_INSTRUMENTS
from rayguard.metrics.instruments.pool import POOL_INSTRUMENTS
from rayguard.metrics.instruments.process import INSTRUMENTS
from rayguard.objects.holdings import HOLDINGS, Holdings, Totals
from rayguard.recovery.incident import Incident, Outcome
from rayguard.recovery.tally import DETECT_BOUNDS_S, TALLY, Tally

ENGINE = {"engine": "rollout"}


def incident(**changes):
    values = {
        "id": "i1",
        "kind": "engine_dead",
        "scope": "engine",
        "cause": "x",
        "remedy": "restart_engine+eager",
    }
    return Incident(**{**values, "outcome": Outcome.RECOVERED, **changes})


@pytest.fixture
def tally():
    tally = Tally()
    engine = tally.engine("rollout")
    engine.epoch, engine.rung, engine.restarts, engine.serving = 2, 1, 2, True
    engine.requests_running, engine.tokens_generated, engine.tokens_saved, engine.tokens_lost = 3, 400, 50, 6
    other = tally.engine("other")
    other.tokens_saved, other.tokens_lost = 7, 1
    tally.calls["Rollout"] += 9
    tally.guard_error("journal")
    tally.closed(incident(detect_s=0.03, recover_s=2.0))
    tally.closed(incident(detect_s=7_000.0))
    return tally


@pytest.fixture
def registry(tally):
    registry = CollectorRegistry()
    registry.register(TallyCollector(tally))
    return registry


@pytest.fixture(autouse=True)
def _nothing_is_left_running():
    yield
    for exporter in list(exporter_module._exporters):
        exporter.close()
    assert "rayguard-metrics" not in [thread.name for thread in threading.enumerate()]


@pytest.fixture
def metrics_errors():
    before = TALLY.guard_errors["metrics"]
    return lambda: TALLY.guard_errors["metrics"] - before


def test_every_number_is_shown(registry):
    """Name, labels and value of each."""
    labels = {
        "kind": "engine_dead",
        "scope": "engine",
        "remedy": "restart_engine+eager",
        "outcome": "recovered",
        "ray_job": "",
    }
    expected = [
        ("rayguard_incidents_total", labels, 2),
        ("rayguard_engine_restarts_total", ENGINE, 2),
        ("rayguard_engine_rung", ENGINE, 1),
        ("rayguard_engine_epoch", ENGINE, 2),
        ("rayguard_engine_serving", ENGINE, 1),
        ("rayguard_engine_serving", {"engine": "other"}, 0),
        ("rayguard_engine_requests_running", ENGINE, 3),
        ("rayguard_tokens_generated_total", ENGINE, 400),
        ("rayguard_tokens_saved_total", {}, 57),
        ("rayguard_tokens_lost_total", {}, 7),
        ("rayguard_calls_total", {"target": "Rollout"}, 9),
        ("rayguard_guard_errors_total", {"piece": "journal"}, 1),
        ("rayguard_info", {"version": version("rayguard")}, 1),
        ("rayguard_detection_seconds_bucket", {"le": "0.025"}, 0),
        ("rayguard_detection_seconds_bucket", {"le": "0.05"}, 1),
        ("rayguard_detection_seconds_bucket", {"le": str(DETECT_BOUNDS_S[-1])}, 1),
        ("rayguard_detection_seconds_bucket", {"le": "+Inf"}, 2),
        ("rayguard_detection_seconds_count", {}, 2),
        ("rayguard_detection_seconds_sum", {}, 7_000.03),
        ("rayguard_recovery_seconds_count", {}, 1),
        ("rayguard_recovery_seconds_sum", {}, 2.0),
    ]
    assert [
        (name, labels, registry.get_sample_value(name, labels)) for name, labels, _ in expected
    ] == expected


def test_references_held_and_freed_are_shown_and_errors_of_the_ledger_count_as_the_guards():
    """Read where they are counted, not copied."""
    holdings, registry, tally = Holdings(), CollectorRegistry(), Tally()
    registry.register(TallyCollector(tally, holdings=holdings))
    opened = holdings.objects.open(1, 0, "main", 1)
    for name in ("a", "b", "c"):
        holdings.objects.made(name, "train.py:7 in step", 0, opened=opened)
    holdings.totals.ended, holdings.totals.ended_bytes = 4, 4_000
    holdings.totals.waiting, holdings.totals.handles_ended = 2, 1
    tally.guard_errors["ledger"] += 3
    expected = {
        "rayguard_objects_held": 3,
        "rayguard_objects_waiting": 2,
        "rayguard_objects_freed_total": 4,
        "rayguard_objects_freed_bytes_total": 4_000,
        "rayguard_actor_handles_freed_total": 1,
    }
    assert {name: registry.get_sample_value(name) for name in expected} == expected
    errors = registry.get_sample_value("rayguard_guard_errors_total", {"piece": "ledger"})
    assert errors == 3


def test_an_error_beside_a_users_put_is_shown(monkeypatch):
    """The piece that failed, on this process's own endpoint; the user's call went on."""
    monkeypatch.setattr(HOLDINGS, "totals", Totals())
    registry = CollectorRegistry()
    registry.register(TallyCollector(TALLY))
    before = TALLY.guard_errors["ledger"]
    with harmless("ledger"):
        raise ValueError("a bug of ours")
    assert registry.get_sample_value("rayguard_guard_errors_total", {"piece": "ledger"}) == before + 1


def test_numbers_are_read_when_asked(registry, tally):
    """No second set of counters that could lag behind."""
    tally.calls["Rollout"] += 1
    tally.engine("rollout").serving = False
    assert registry.get_sample_value("rayguard_calls_total", {"target": "Rollout"}) == 10
    assert registry.get_sample_value("rayguard_engine_serving", ENGINE) == 0


def test_a_registry_refuses_the_same_twice(registry, tally):
    """Shown twice, each sum would be doubled."""
    with pytest.raises(ValueError, match="Duplicated"):
        registry.register(TallyCollector(tally))


def scrape(url, timeout=10):
    with urllib.request.urlopen(url, timeout=timeout) as answer:
        return {family.name: family for family in text_string_to_metric_families(answer.read().decode())}


def test_a_real_scrape_parses_and_has_them_all(tally):
    """What a Prometheus server gets over HTTP, types included."""
    exporter = serve_metrics(tally=tally)
    families = scrape(exporter.url)
    assert exporter.url == f"http://127.0.0.1:{exporter.port}/metrics"
    every = (*INSTRUMENTS, *OBJECT_INSTRUMENTS, *POOL_INSTRUMENTS)
    assert set(families) == {one.name.removesuffix("_total") for one in every}
    for instrument in every:
        assert families[instrument.name.removesuffix("_total")].type == instrument.type.value
    (sample,) = families["rayguard_calls"].samples
    assert (sample.labels, sample.value) == ({"target": "Rollout"}, 9)


def test_it_listens_on_loopback_only_by_default(tally):
    """Nothing is shown to a network that nobody asked to show it to."""
    serve_metrics(tally=tally)
    assert exporter_module._exporters[0]._server.address == "127.0.0.1"


def test_ipv6_has_a_url_that_works(tally):
    """Brackets around the address."""
    with socket.socket(socket.AF_INET6) as probe:
        try:
            probe.bind(("::1", 0))
        except OSError:
            pytest.skip("this machine has no IPv6 loopback")
    exporter = serve_metrics(address="::1", tally=tally)
    assert exporter.url.startswith("http://[::1]:")
    assert scrape(exporter.url)


def test_the_second_call_returns_the_first(tally, caplog):
    """One endpoint per process, whoever asks again; another registry is not dropped in silence."""
    first = serve_metrics(tally=tally)
    assert serve_metrics(tally=tally) is first
    assert not caplog.records
    assert serve_metrics(registry=CollectorRegistry()) is first
    assert "another registry" in caplog.text


def test_a_users_registry_is_served_whole(tally):
    """Next to metrics of their own."""
    registry = CollectorRegistry()
    Gauge("reward", "Mean reward.", registry=registry).set(0.5)
    exporter = serve_metrics(tally=tally, registry=registry)
    families = scrape(exporter.url)
    assert families["reward"].samples[0].value == 0.5
    assert "rayguard_calls" in families
    exporter.close()
    assert scrape(serve_metrics(tally=tally, registry=registry).url)["rayguard_calls"].samples[0].value == 9


def test_closing_gives_the_port_back(tally):
    """And the next call opens a new endpoint."""
    first = serve_metrics(tally=tally)
    assert tally.metrics_url == first.url
    first.close()
    first.close()
    assert tally.metrics_url == ""
    with pytest.raises(urllib.error.URLError):
        scrape(first.url, timeout=2)
    again = serve_metrics(first.port, tally=tally)
    assert again is not first
    assert again.port == first.port


@pytest.fixture
def taken():
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        yield other.getsockname()[1]


def test_a_taken_port_is_counted_and_another_one_used(tally, taken, metrics_errors, caplog):
    """Never worse: the metrics are there, the log says where."""
    exporter = serve_metrics(taken, tally=tally)
    assert exporter.port not in (0, taken)
    assert scrape(exporter.url)
    assert metrics_errors() == 1
    assert str(taken) in caplog.text
    assert exporter.url in caplog.text


def test_a_second_endpoint_on_the_same_port_is_a_taken_port(tally, metrics_errors):
    """With SO_REUSEPORT two processes would be scraped by turns and nobody would know."""
    first = serve_metrics(tally=tally)
    exporter_module._exporters.clear()  # as another process would
    try:
        assert serve_metrics(first.port, tally=tally).port != first.port
        assert metrics_errors() == 1
    finally:
        first.close()


def test_a_taken_port_can_be_an_error(tally, taken):
    """For who scrapes a fixed port and would rather know."""
    with pytest.raises(OSError, match="in use"):
        serve_metrics(taken, tally=tally, any_free_port=False)


def test_an_address_that_cannot_be_had_costs_only_the_metrics(tally, metrics_errors, caplog):
    """192.0.2.0/24 belongs to nobody."""
    exporter = serve_metrics(address="192.0.2.1", tally=tally)
    assert (exporter.port, exporter.url) == (0, "")
    assert metrics_errors() == 1
    assert logging.ERROR in [record.levelno for record in caplog.records]
    exporter.close()
    assert serve_metrics(tally=tally).port, "a later call may still succeed"


@pytest.mark.parametrize("port", [-1, 65_536])
def test_an_impossible_port_is_refused(port):
    """A mistake of the caller, told at once."""
    with pytest.raises(ConfigError, match=str(port)):
        serve_metrics(port)


def test_settings_decide(monkeypatch):
    """Off unless asked for."""
    monkeypatch.delenv("RAYGUARD_METRICS_PORT", raising=False)
    assert serve_as_configured() is None
    monkeypatch.setenv("RAYGUARD_METRICS_PORT", "0")
    exporter = serve_as_configured()
    assert exporter is not None
    assert TALLY.metrics_url == exporter.url


def test_a_process_without_an_endpoint_does_not_load_prometheus():
    """It takes half a second of each actor's start, and of the next life of a pool's owner."""
    code = (
        "import sys\n"
        "from rayguard.pool.status import show\n"
        "from rayguard.metrics.configured import serve_as_configured\n"
        "print(serve_as_configured(), 'prometheus_client' in sys.modules)\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "RAYGUARD_METRICS_PORT"}
    said = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    assert said.stdout.split() == ["None", "False"]


def test_the_token_of_the_node_protects_the_process_too(monkeypatch, tmp_path):
    """Both listen on the address that is set: one of them must not be open to all."""
    file = tmp_path / "token"
    file.write_text("secret\n")
    monkeypatch.setenv("RAYGUARD_METRICS_PORT", "0")
    monkeypatch.setenv("RAYGUARD_METRICS_TOKEN_FILE", str(file))
    exporter = serve_as_configured()
    for said in ({}, {"Authorization": "Bearer secre"}):
        with pytest.raises(urllib.error.HTTPError, match="401") as refused:
            urllib.request.urlopen(urllib.request.Request(exporter.url, headers=said), timeout=30)
        assert b"rayguard_" not in refused.value.read()
        refused.value.close()
    asked = urllib.request.Request(exporter.url, headers={"Authorization": "Bearer secret"})
    with urllib.request.urlopen(asked, timeout=30) as answer:
        assert b"rayguard_info" in answer.read()


@pytest.mark.parametrize("content", [None, " \n"])
def test_without_the_token_that_is_asked_for_a_process_does_not_serve(monkeypatch, tmp_path, content):
    """A mistake in a path must not open it."""
    if content is not None:
        (tmp_path / "token").write_text(content)
    monkeypatch.setenv("RAYGUARD_METRICS_PORT", "0")
    monkeypatch.setenv("RAYGUARD_METRICS_TOKEN_FILE", str(tmp_path / "token"))
    with pytest.raises((OSError, ConfigError)):
        serve_as_configured()
    assert TALLY.metrics_url == ""


def test_a_silent_client_does_not_keep_others_waiting(tally):
    """One that connects and says nothing."""
    exporter = serve_metrics(tally=tally)
    with socket.create_connection(("127.0.0.1", exporter.port), timeout=5):
        assert scrape(exporter.url)
        began = time.monotonic()
        exporter.close()
        assert time.monotonic() - began < 5


def test_scrapes_beside_a_busy_process_are_whole(tally):
    """Counters only grow from scrape to scrape, and the parts of a histogram agree."""
    exporter, stop = serve_metrics(tally=tally), threading.Event()

    def work():
        n = 0
        while not stop.is_set():
            n += 1
            tally.calls[f"target{n % 50}"] += 1
            tally.closed(incident(kind=f"kind{n % 20}", detect_s=0.01 * n, recover_s=0.1))

    workers = [threading.Thread(target=work) for _ in range(2)]
    for worker in workers:
        worker.start()
    try:
        last = {}
        for _ in range(15):
            samples = [s for family in scrape(exporter.url).values() for s in family.samples]
            now = {(s.name, *sorted(s.labels.items())): s.value for s in samples if "engine" not in s.labels}
            assert all(now[key] >= value for key, value in last.items())
            closed = sum(value for (name, *_), value in now.items() if name == "rayguard_incidents_total")
            assert closed == now[("rayguard_detection_seconds_count",)]
            assert closed == now[("rayguard_detection_seconds_bucket", ("le", "+Inf"))]
            last = now
    finally:
        stop.set()
        for worker in workers:
            worker.join(30)


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_does_not_hold_the_port(tally):
    """Otherwise the port stays taken, and dead, as long as any child of a dead actor lives."""
    exporter = serve_metrics(tally=tally)
    ready, go = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.write(ready[1], b"1")
        os.read(go[0], 1)
        again = serve_metrics(tally=tally)
        os._exit(0 if again is not exporter and again.port and scrape(again.url) else 1)
    assert os.read(ready[0], 1) == b"1"
    exporter.close()
    with pytest.raises(urllib.error.URLError):
        scrape(exporter.url, timeout=2)
    os.write(go[1], b"1")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    for end in (*ready, *go):
        os.close(end)


def answer_of(url, **headers):
    """Return the status and the body."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=30) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


@pytest.mark.parametrize("content", [None, " \n"])
def test_serve_metrics_is_closed_without_the_token_that_is_asked_for(monkeypatch, tmp_path, content):
    """Who opens the endpoint in code is told; nothing is shown."""
    if content is not None:
        (tmp_path / "token").write_text(content)
    monkeypatch.setenv("RAYGUARD_METRICS_TOKEN_FILE", str(tmp_path / "token"))
    with pytest.raises((OSError, ConfigError)):
        serve_metrics()
    assert TALLY.metrics_url == ""


def test_serve_metrics_takes_what_is_not_said_from_the_environment(monkeypatch, tmp_path, tally):
    """An argument comes first."""
    (tmp_path / "token").write_text("of the file\n")
    monkeypatch.setenv("RAYGUARD_METRICS_TOKEN_FILE", str(tmp_path / "token"))
    monkeypatch.setenv("RAYGUARD_METRICS_ADDRESS", "127.0.0.2")
    exporter = serve_metrics(tally=tally)
    assert exporter.url.startswith("http://127.0.0.2:")
    assert answer_of(exporter.url)[0] == 401
    assert answer_of(exporter.url, Authorization="Bearer of the file")[0] == 200
    exporter.close()
    exporter = serve_metrics(address="127.0.0.1", token="given", tally=tally)
    assert exporter.url.startswith("http://127.0.0.1:")
    assert answer_of(exporter.url, Authorization="Bearer of the file")[0] == 401
    assert answer_of(exporter.url, Authorization="Bearer given")[0] == 200


@pytest.mark.parametrize("scheme", ["Bearer ", "bearer ", "BEARER  ", ""])
def test_the_word_bearer_may_be_written_in_any_case(tally, scheme):
    """As HTTP has it; without it as some versions of Prometheus say it."""
    exporter = serve_metrics(tally=tally, token="secret")
    assert answer_of(exporter.url, Authorization=f"{scheme}secret")[0] == 200
    assert answer_of(exporter.url, Authorization=f"{scheme}secreT")[0] == 401
    assert answer_of(exporter.url, Authorization=f"Basic {scheme}secret")[0] == 401


def test_an_unknown_path_is_not_found(tally):
    """And not the metrics under another name; who may not see learns nothing of paths."""
    exporter = serve_metrics(tally=tally, token="secret")
    base = exporter.url.removesuffix("/metrics")
    for path in ("/", "/metric", "/metrics/", "/../metrics", "/favicon.ico", "/-/healthy"):
        status, body = answer_of(base + path, Authorization="Bearer secret")
        assert status == 404, path
        assert b"rayguard_" not in body
        assert answer_of(base + path)[0] == 401
    assert answer_of(f"{exporter.url}?name[]=rayguard_info", Authorization="Bearer secret")[0] == 200
