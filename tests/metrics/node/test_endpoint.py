"""The node's endpoint: what it shows, to whom, and that no client can hold it up."""

import contextlib
import gzip
import http.client
import json
import shutil
import socket
import subprocess
import threading

import pytest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from rayguard.errors import ConfigError
from rayguard.metrics import http_server as server_module
from rayguard.metrics.families import family
from rayguard.metrics.instruments.instrument import Instrument, MetricType
from rayguard.metrics.node.discovery import Target
from rayguard.metrics.node.endpoint import NodeEndpoint
from rayguard.recovery.tally import TALLY, Durations

CALLS = Instrument(name="rayguard_calls_total", type=MetricType.COUNTER, help="Calls.", read=list)
TOOK = Instrument(name="rayguard_took_seconds", type=MetricType.HISTOGRAM, help="Time.", read=list)
TARGET = Target("10.0.0.1:9400", {"ray_node_id": "a"})


class Numbers(Collector):
    def __init__(self, calls=3.0):
        self.generation = 1
        self.calls = calls
        self.collected = 0

    def collect(self):
        self.collected += 1
        yield family(CALLS, ("actor_class",), [(("Rollout",), self.calls)])
        yield family(TOOK, (), [((), Durations((1.0,), [2, 1], 5.0))])


@pytest.fixture
def numbers():
    return Numbers()


@pytest.fixture
def open_endpoint():
    endpoints = []

    def make(*arguments, **more):
        endpoints.append(NodeEndpoint(*arguments, **more))
        return endpoints[-1]

    yield make
    for endpoint in endpoints:
        endpoint.close()
    assert "rayguard-node-metrics" not in [thread.name for thread in threading.enumerate()]


@pytest.fixture
def endpoint(open_endpoint, numbers):
    return open_endpoint([numbers], targets=lambda: [TARGET])


def ask(endpoint, path, method="GET", **headers):
    connection = http.client.HTTPConnection("127.0.0.1", endpoint.port, timeout=30)
    try:
        connection.request(
            method, path, headers={name.replace("_", "-"): said for name, said in headers.items()}
        )
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()
    finally:
        connection.close()


def test_metrics_are_what_a_prometheus_reads(endpoint):
    """Names, types, labels, numbers."""
    status, headers, body = ask(endpoint, "/metrics")
    families = {one.name: one for one in text_string_to_metric_families(body.decode())}
    assert (status, headers["Content-Type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    assert int(headers["Content-Length"]) == len(body)
    assert families["rayguard_calls"].samples[0].labels == {"actor_class": "Rollout"}
    assert families["rayguard_calls"].samples[0].value == 3
    assert families["rayguard_took_seconds"].type == "histogram"
    assert endpoint.url == f"http://127.0.0.1:{endpoint.port}/metrics"


@pytest.mark.skipif(not shutil.which("promtool"), reason="needs promtool (Debian: apt install prometheus)")
def test_promtool_has_no_objection(endpoint):
    """Its lint of names and help texts."""
    _, _, body = ask(endpoint, "/metrics")
    ran = subprocess.run(
        ["promtool", "check", "metrics"], input=body, capture_output=True, timeout=60, check=False
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, b"", b"")


def test_a_zipped_answer_is_the_same(endpoint):
    """As Prometheus asks for it."""
    _, plain, body = ask(endpoint, "/metrics")
    _, headers, zipped = ask(endpoint, "/metrics", Accept_Encoding="deflate, gzip;q=0.9")
    assert (plain["Content-Encoding"], headers["Content-Encoding"]) == (None, "gzip")
    assert gzip.decompress(zipped) == body


def test_a_scrape_makes_no_text_that_is_there_already(endpoint, numbers):
    """It is made when the numbers were refreshed, however often it is asked for."""
    bodies = {ask(endpoint, "/metrics")[2] for _ in range(5)}
    assert (len(bodies), numbers.collected) == (1, 1)
    numbers.calls, numbers.generation = 4.0, 2
    assert b'rayguard_calls_total{actor_class="Rollout"} 4.0' in ask(endpoint, "/metrics")[2]
    assert numbers.collected == 2


def test_a_collector_without_generations_is_asked_each_time(open_endpoint):
    """Any collector of Prometheus's client library will do."""

    class Plain(Numbers):
        def __init__(self):
            super().__init__()
            del self.generation

    plain = Plain()
    endpoint = open_endpoint([plain])
    for n in range(3):
        plain.calls = float(n)
        assert f"}} {n}.0".encode() in ask(endpoint, "/metrics")[2]


def test_discovery_says_where_all_nodes_are(endpoint):
    """As JSON, with a type that Prometheus insists on."""
    status, headers, body = ask(endpoint, "/sd")
    assert (status, headers["Content-Type"]) == (200, "application/json")
    assert json.loads(body) == [
        {"targets": ["10.0.0.1:9400"], "labels": {"job": "rayguard", "ray_node_id": "a"}}
    ]


@pytest.mark.parametrize(
    "path", ["/", "/metrics/", "/metrics/x", "/../etc/passwd", "//", "/sd/", "/favicon.ico"]
)
def test_there_is_nothing_else(endpoint, path):
    """No listing, no files."""
    status, _, body = ask(endpoint, path)
    assert (status, b"passwd" in body) == (404, False)


@pytest.mark.parametrize("path", ["/metrics", "/sd", "/healthz", "/nothing"])
def test_head_has_the_headers_and_no_body(endpoint, path):
    """As a probe may ask."""
    (status, headers, body), (_, full, whole) = ask(endpoint, path, "HEAD"), ask(endpoint, path)
    assert body == b""
    assert status == (404 if path == "/nothing" else 200)
    assert headers["Content-Length"] == full["Content-Length"] == str(len(whole))


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "NONSENSE"])
def test_nothing_can_be_sent_to_it(endpoint, method):
    """It only tells."""
    status, headers, _ = ask(endpoint, "/metrics", method)
    assert (status, headers["Allow"]) == (405, "GET, HEAD")


@pytest.mark.parametrize(
    "said",
    [
        None,
        "",
        "Bearer",
        "Bearer ",
        "Bearer secre",
        "Bearer secret2",
        "Basic secret",
        "Secret",
        "Bearer Bearer secret",
        "Bearer s\xe9",
    ],
)
def test_with_a_token_nobody_else_sees_anything(open_endpoint, numbers, said):
    """Not even which paths there are; a probe learns that it lives."""
    endpoint = open_endpoint([numbers], token="secret", targets=lambda: [TARGET])
    headers = {} if said is None else {"Authorization": said}
    for path in ("/metrics", "/sd", "/nothing"):
        status, answered, body = ask(endpoint, path, **headers)
        assert (status, answered["WWW-Authenticate"]) == (401, "Bearer")
        assert b"rayguard_" not in body
        assert b"10.0.0.1" not in body
    assert ask(endpoint, "/healthz", **headers)[::2] == (200, b"ok\n")
    assert numbers.collected == 0


def test_the_token_opens_it(open_endpoint, numbers):
    """For metrics and discovery; also without its type, as Prometheus 2.42 may send it for discovery."""
    endpoint = open_endpoint([numbers], token="secret", targets=lambda: [TARGET])
    for said in ("Bearer secret", "secret"):
        assert {ask(endpoint, path, Authorization=said)[0] for path in ("/metrics", "/sd")} == {200}


@pytest.mark.parametrize("token", ["", "  "])
def test_an_empty_token_is_refused(token):
    """A variable that was not set must not look like protection."""
    with pytest.raises(ConfigError, match="empty token"):
        NodeEndpoint([], token=token)


def test_an_error_in_it_is_an_answer(open_endpoint, numbers, caplog):
    """Said in the agent's log and counted, not told to the client; the next request is served."""

    def targets():
        raise RuntimeError("a secret of the cluster")

    endpoint, errors = open_endpoint([numbers], targets=targets), TALLY.guard_errors["metrics"]
    status, _, body = ask(endpoint, "/sd")
    assert (status, b"secret" in body) == (500, False)
    assert "a secret of the cluster" in caplog.text
    assert TALLY.guard_errors["metrics"] == errors + 1
    assert ask(endpoint, "/metrics")[0] == 200


def test_a_taken_port_is_said_and_another_one_used(open_endpoint, endpoint, caplog):
    """Once."""
    other = open_endpoint([Numbers()], port=endpoint.port)
    assert other.port not in (0, endpoint.port)
    assert ask(other, "/healthz")[0] == 200
    assert caplog.text.count("trying any free port") == 1


def test_an_address_that_is_not_ours_serves_nothing_and_raises_nothing(open_endpoint, caplog):
    """The agent goes on without."""
    endpoint = open_endpoint([Numbers()], address="192.0.2.1")
    assert (endpoint.port, endpoint.url) == (0, "")
    assert "not served" in caplog.text


def test_a_client_that_sends_byte_by_byte_is_cut_off(open_endpoint, numbers, monkeypatch):
    """Each byte is in time; the request as a whole is not."""
    monkeypatch.setattr(server_module, "_REQUEST_DEADLINE_S", 0.3)
    endpoint, pause = open_endpoint([numbers]), threading.Event()
    with socket.create_connection(("127.0.0.1", endpoint.port), timeout=30) as slow:
        slow.settimeout(30)

        def drip():
            try:
                while not pause.wait(0.05):
                    slow.sendall(b"X")
            except OSError:
                pass

        sender = threading.Thread(target=drip)
        sender.start()
        try:
            answered = b"x"
            try:
                while answered:
                    answered = slow.recv(100)  # until it is closed
            except ConnectionResetError:
                pass
        finally:
            pause.set()
            sender.join(30)
    assert ask(endpoint, "/healthz")[0] == 200


def test_a_crowd_of_silent_clients_is_turned_away_and_costs_no_threads_without_end(
    open_endpoint, monkeypatch
):
    """The first ones wait for their deadline; a scrape gets in when they are gone."""
    monkeypatch.setattr(server_module, "_MAX_REQUESTS", 3)
    endpoint = open_endpoint([Numbers()])
    before = threading.active_count()
    silent = [socket.create_connection(("127.0.0.1", endpoint.port), timeout=30) for _ in range(20)]
    try:
        for client in silent[3:]:
            client.settimeout(30)
            with contextlib.suppress(ConnectionResetError):
                assert client.recv(1) == b""
        assert threading.active_count() <= before + 2 * 3
    finally:
        for client in silent:
            client.close()
    pause = threading.Event()
    for _ in range(300):
        try:
            assert ask(endpoint, "/healthz")[0] == 200
            break
        except (OSError, http.client.HTTPException):
            pause.wait(0.1)
    else:
        pytest.fail("nobody gets in any more")


def test_one_crowd_does_not_keep_others_out(endpoint):
    """A stranger who opens as many connections as he can, and Prometheus from elsewhere."""
    where = ("127.0.0.1", endpoint.port)
    silent = [socket.create_connection(where, 30, ("127.0.0.2", 0)) for _ in range(60)]
    try:
        assert {ask(endpoint, "/metrics")[0] for _ in range(5)} == {200}
    finally:
        for client in silent:
            client.close()


def test_a_client_that_goes_away_says_nothing_on_the_terminal(endpoint, capfd):
    """In the middle of a request: no news."""
    with socket.create_connection(("127.0.0.1", endpoint.port), timeout=30) as client:
        client.sendall(b"GET /metrics HTTP/1.1\r\nHo")
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    assert ask(endpoint, "/healthz")[0] == 200
    assert capfd.readouterr().err == ""
