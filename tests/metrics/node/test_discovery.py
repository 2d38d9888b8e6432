"""Where the endpoints are: a file and an answer that Prometheus takes, and no trap set by another user."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import threading
import time
import tracemalloc
import urllib.request

import pytest
from prometheus_client.registry import Collector

from rayguard.metrics.families import family
from rayguard.metrics.instruments.instrument import Instrument, MetricType
from rayguard.metrics.node import discovery
from rayguard.metrics.node.discovery import Target, as_json, write
from rayguard.metrics.node.endpoint import NodeEndpoint
from tests.open_files import open_files

ONE, TWO = Target("10.0.0.1:9400", {"ray_node_id": "a"}), Target("10.0.0.2:9400", {"ray_node_id": "b"})
DEADLINE_S = 60


def test_it_is_what_prometheus_reads():
    """A list of groups; the name of the scrape is ours unless told otherwise."""
    assert json.loads(as_json([TWO, ONE, Target("10.0.0.3:1", {"ray_node_id": "a", "job": "other"})])) == [
        {"targets": ["10.0.0.3:1"], "labels": {"job": "other", "ray_node_id": "a"}},
        {"targets": ["10.0.0.1:9400"], "labels": {"job": "rayguard", "ray_node_id": "a"}},
        {"targets": ["10.0.0.2:9400"], "labels": {"job": "rayguard", "ray_node_id": "b"}},
    ]
    assert json.loads(as_json([])) == []


def test_the_order_of_nodes_does_not_change_it():
    """Otherwise Prometheus would read the file anew each time."""
    same = [Target("10.0.0.2:1"), Target("10.0.0.1:1"), Target("10.0.0.2:1")]
    assert as_json(same) == as_json(same[::-1])
    assert json.loads(as_json(same))[0]["targets"] == ["10.0.0.1:1", "10.0.0.2:1"]


def test_it_is_replaced_when_it_changes(tmp_path):
    """In one step, readable by Prometheus's own user, whatever the umask."""
    path = tmp_path / discovery.FILE
    before = os.umask(0o077)
    try:
        assert write(path, [ONE])
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o644
    first = path.stat().st_ino
    assert not write(path, [ONE])
    assert path.stat().st_ino == first
    assert write(path, [ONE, TWO])
    assert len(json.loads(path.read_bytes())) == 2
    assert [one.name for one in tmp_path.iterdir()] == [discovery.FILE]
    path.unlink(missing_ok=True)
    path.unlink(missing_ok=True)
    assert not list(tmp_path.iterdir())


def test_a_link_in_its_place_is_replaced_and_not_followed(tmp_path):
    """In a directory that everybody may write."""
    victim, path = tmp_path / "victim", tmp_path / discovery.FILE
    victim.write_bytes(as_json([ONE]))
    path.symlink_to(victim)
    assert write(path, [ONE])
    assert not path.is_symlink()
    assert write(path, [TWO])
    assert victim.read_bytes() == as_json([ONE])
    path.unlink()
    path.symlink_to(victim)
    path.unlink(missing_ok=True)
    assert victim.exists()


def test_a_pipe_in_its_place_does_not_hang_it(tmp_path):
    """Opened without waiting for a writer."""
    path = tmp_path / discovery.FILE
    os.mkfifo(path)
    assert write(path, [ONE])
    assert path.read_bytes() == as_json([ONE])


def test_a_huge_file_in_its_place_is_not_read(tmp_path):
    """Of another user, in a directory that everybody may write: no more than would be ours."""
    path = tmp_path / discovery.FILE
    with path.open("wb") as file:
        file.truncate(1 << 40)
    tracemalloc.start()
    try:
        assert write(path, [ONE])
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert path.read_bytes() == as_json([ONE])


def test_what_cannot_be_written_is_an_error_and_leaves_nothing(tmp_path):
    """Whoever called it counts it."""
    (tmp_path / discovery.FILE).mkdir()
    before = open_files()
    with pytest.raises(OSError, match="irectory"):
        write(tmp_path / discovery.FILE, [ONE])
    assert not open_files() - before
    assert [one.name for one in tmp_path.iterdir()] == [discovery.FILE]
    with pytest.raises(FileNotFoundError):
        write(tmp_path / "no" / discovery.FILE, [ONE])


class Numbers(Collector):
    """Two processes' worth of numbers."""

    generation = 1

    def collect(self):
        one = Instrument(name="rayguard_calls_total", type=MetricType.COUNTER, help="X.", read=list)
        yield family(one, ("ray_job", "actor_class"), [(("01000000", "Rollout"), 9.0), (("", ""), 1.0)])


CONFIG = """
global: {{scrape_interval: 1s}}
scrape_configs:
- job_name: by-file
  authorization: {{credentials: secret}}
  file_sd_configs: [{{files: ['{file}'], refresh_interval: 1s}}]
- job_name: by-http
  authorization: {{credentials: secret}}
  http_sd_configs:
  - url: http://127.0.0.1:{port}/sd
    refresh_interval: 1s
    authorization: {{credentials: secret}}
  relabel_configs: [{{target_label: ray_node_id, replacement: http}}]
"""
PROMETHEUS = shutil.which("prometheus")


def free_port():
    probe = NodeEndpoint([])
    port = probe.port
    probe.close()
    return port


def asked(port, query):
    url = f"http://127.0.0.1:{port}/api/v1/query?query={urllib.request.quote(query)}"
    with urllib.request.urlopen(url, timeout=10) as answer:
        return [one["metric"] for one in json.load(answer)["data"]["result"]]


@pytest.mark.skipif(
    PROMETHEUS is None, reason="needs prometheus and promtool (Debian: apt install prometheus)"
)
def test_a_real_prometheus_finds_and_scrapes_it_both_ways(tmp_path):
    """By the file and over HTTP, with a token; the labels are as dashboards ask for them."""
    targets = []
    endpoint = NodeEndpoint([Numbers()], token="secret", targets=lambda: targets)
    address = f"127.0.0.1:{endpoint.port}"
    targets.append(Target(address, {"ray_node_id": "file"}))
    write(tmp_path / discovery.FILE, targets)
    config, port = tmp_path / "prometheus.yml", free_port()
    config.write_text(CONFIG.format(file=tmp_path / discovery.FILE, port=endpoint.port))
    subprocess.run(
        ["promtool", "check", "config", config], check=True, capture_output=True, timeout=DEADLINE_S
    )
    where = [f"--config.file={config}", f"--storage.tsdb.path={tmp_path}/db"]
    with open(tmp_path / "log", "wb") as log:  # noqa: PTH123
        server = subprocess.Popen(
            [PROMETHEUS, *where, f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=log
        )
    try:
        found, deadline, pause = [], time.monotonic() + DEADLINE_S, threading.Event()
        while len(found) < 4:
            assert time.monotonic() < deadline, (found, (tmp_path / "log").read_text()[-2000:])
            pause.wait(0.2)
            with contextlib.suppress(OSError):  # not yet listening
                found = asked(port, "rayguard_calls_total")
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(DEADLINE_S)
        endpoint.close()
    plain = {"__name__": "rayguard_calls_total", "job": "rayguard", "instance": address}
    whose = {"ray_job": "01000000", "actor_class": "Rollout"}
    expected = [{**plain, "ray_node_id": by, **more} for by in ("file", "http") for more in (whose, {})]
    assert sorted(map(_pairs, found)) == sorted(map(_pairs, expected))


def _pairs(labels):
    return sorted(labels.items())
