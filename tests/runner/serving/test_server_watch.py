"""Servers that are watched, as real small processes: struck, slow, idle; and started again by ``rayguard run``."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

import psutil
import pytest
from small_programs import DEADLINE_S

from rayguard.dialects.dialect import Command
from rayguard.process.identity import ProcessId
from rayguard.process.tree import end
from rayguard.runner.serving.found import GONE, SILENT, UNANSWERED
from rayguard.runner.serving.patience import ServingPatience
from rayguard.runner.serving.server_watch import ServerWatch

STUB = Path(__file__).with_name("stub_server.py")
# A step counts 2.2 s at most, so that a token every third look is soon enough on any machine.
QUICK = ServingPatience(
    silent_s=7.0, crashed_s=0.5, lost_s=1.0, processes_s=0.1, counters_s=0.2, answer_s=1.0
)


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def asked(port, path):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
        return answer.read()


def state_of(port):
    """What a server tells of itself, as soon as it does."""
    until = time.monotonic() + DEADLINE_S
    while time.monotonic() < until:
        with contextlib.suppress(OSError):
            return json.loads(asked(port, "/state"))
        threading.Event().wait(0.05)
    raise TimeoutError(port)


def engine_of(pid):
    """The engine below a process, as soon as it has its title."""
    until = time.monotonic() + DEADLINE_S
    while time.monotonic() < until:
        for one in psutil.Process(pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if one.cmdline()[:1] == ["VLLM::EngineCore"]:
                    return one.pid
        threading.Event().wait(0.05)
    raise TimeoutError(pid)


@contextlib.contextmanager
def waiting_client(port):
    """A client that has asked and gets no answer."""
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(b"GET /infer HTTP/1.1\r\nHost: x\r\n\r\n")
        yield


class WatchedServer:
    """A stub server, and what its watch found and said."""

    def __init__(self, *how, patience=QUICK, words=("swift", "rollout")):
        self.port = free_port()
        self.process = subprocess.Popen(
            [sys.executable, str(STUB), str(self.port), *how], start_new_session=True
        )
        self.state = state_of(self.port)
        self.engine = engine_of(self.process.pid)
        self.found, self.said = queue.SimpleQueue(), []
        command = Command(words=(*words, "--port", str(self.port)))
        watch = ServerWatch(command, patience, self.said.append)
        self.watched = watch.begin(ProcessId.of(self.process.pid), self.found.put)
        threading.Event().wait(4 * patience.processes_s)

    def comes_to(self, within_s=DEADLINE_S):
        """What is found; None where nothing is within the time."""
        with contextlib.suppress(queue.Empty):
            return self.found.get(timeout=within_s)
        return None

    def close(self):
        self.watched.close()
        for left in (self.process.pid, self.engine):
            one = ProcessId.of(left)
            if one is not None:
                end([one], polite_s=0)
        self.process.wait(10)


@pytest.fixture
def watched_server():
    servers = []

    def start(*how, **more):
        servers.append(WatchedServer(*how, **more))
        return servers[-1]

    yield start
    for one in servers:
        one.close()


@pytest.mark.parametrize("struck", ["engine", "worker"])
def test_a_server_whose_engine_or_worker_was_killed_is_found(watched_server, struck):
    """It goes on to say that it is well."""
    server = watched_server()
    os.kill(server.engine if struck == "engine" else server.state["worker"], signal.SIGKILL)
    found = server.comes_to()
    assert found.signature == GONE
    assert asked(server.port, "/health") == b"ok"


def test_an_engine_that_nobody_waits_for_is_found_as_a_zombie(watched_server):
    """Its server never asks how it is."""
    server = watched_server("flat")
    os.kill(server.engine, signal.SIGKILL)
    assert "was ended by SIGKILL" in server.comes_to().cause


def test_a_server_that_replaces_its_worker_is_left_alone(watched_server):
    """Each time."""
    server = watched_server("again", patience=ServingPatience(processes_s=0.1, crashed_s=5.0))
    for _ in range(2):
        os.kill(state_of(server.port)["worker"], signal.SIGKILL)
        os.kill(server.engine, signal.SIGKILL)  # it would outlive the worker, and this test
        threading.Event().wait(1.0)
        server.engine = engine_of(server.process.pid)
    assert server.comes_to(within_s=6.0) is None


def test_a_server_that_stands_still_while_a_client_waits_is_found(watched_server):
    """Without a client it is not: what its gauge shows may be old."""
    server = watched_server("still")
    looks = state_of(server.port)["looks"]
    assert server.comes_to(within_s=9.0) is None
    with waiting_client(server.port):
        found = server.comes_to()
    assert found.signature == SILENT
    assert state_of(server.port)["looks"] > looks


@pytest.mark.parametrize("how", ["slow", "idle"])
def test_a_slow_server_and_an_idle_one_are_left_alone(watched_server, how):
    """However long."""
    server = watched_server(how)
    with waiting_client(server.port):
        assert server.comes_to(within_s=15.0) is None
    assert server.said == []


def test_a_server_that_had_answered_and_is_stopped_is_found(watched_server):
    """Its /metrics is open, and nobody answers there."""
    quick = ServingPatience(silent_s=1.0, counters_s=0.2, answer_s=0.5, times=1.0)
    server = watched_server("idle", patience=quick)
    until = time.monotonic() + DEADLINE_S
    while state_of(server.port)["looks"] < 2 and time.monotonic() < until:
        threading.Event().wait(0.1)
    os.kill(server.process.pid, signal.SIGSTOP)
    assert server.comes_to().signature == UNANSWERED


def test_what_cannot_be_asked_is_said_once(watched_server):
    """Its engine is watched all the same."""
    server = watched_server()
    until = time.monotonic() + DEADLINE_S
    while not server.said and time.monotonic() < until:
        threading.Event().wait(0.1)
    assert ["does not tell what vLLM counts" in one for one in server.said] == [True]
    os.kill(server.engine, signal.SIGKILL)
    assert server.comes_to().signature == GONE


def test_a_stranger_s_server_on_the_same_port_is_not_asked(watched_server):
    """What it counts says nothing of the command."""
    server = watched_server("still")
    with subprocess.Popen(["sleep", "1000"], start_new_session=True) as other:
        found = queue.SimpleQueue()
        command = Command(words=("vllm", "serve", "m", "--port", str(server.port)))
        mine = ServerWatch(command, QUICK, server.said.append).begin(ProcessId.of(other.pid), found.put)
        with waiting_client(server.port):
            assert server.comes_to() is not None
        assert found.empty()
        mine.close()
        other.kill()


SEEN_S = 6.0  # what was never there cannot be missed: the watch looks every two seconds
STORY = (
    f"import runpy\nsys.argv = ['stub', words[words.index('--port') + 1], *words[3:]]\n"
    f"print('life', life, os.getpid(), flush=True)\nrunpy.run_path({str(STUB)!r}, run_name='__main__')"
)


@contextlib.contextmanager
def run_of_a_stub(stage, *options):
    """``rayguard run`` of the stub server; yields its process, its port and the server's first state."""
    port = free_port()
    process = stage.start(stage.swift, "rollout", "--port", port, story=STORY, options=options)
    try:
        first = state_of(port)
        engine = engine_of(first["pid"])
        threading.Event().wait(SEEN_S)
        os.kill(engine, signal.SIGKILL)
        yield process, port, first
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=DEADLINE_S)


def test_a_server_without_its_engine_is_started_again_by_the_run(stage):
    """With an incident that says so, and in the summary; told to end, it ends."""
    with run_of_a_stub(stage, "--json", "told") as (process, port, first):
        until = time.monotonic() + DEADLINE_S
        while len(stage.lives()) < 2 and time.monotonic() < until:
            threading.Event().wait(0.1)
        second = state_of(port)
        assert engine_of(second["pid"])
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=DEADLINE_S)
    assert b"lives on without its engine: VLLM::EngineCore" in said
    assert b"was ended by rayguard after" in said
    assert b"started again in 5 s (1 of 3)" in said
    assert (second["pid"] == first["pid"], len(stage.lives())) == (False, 2)
    told = json.loads((stage.folder / "told").read_text())
    assert [one["signature"] for one in told["lives"]] == [GONE, ""]
    (incident,) = stage.incidents()
    assert (incident.signature, incident.kind, incident.remedy) == (GONE, "engine_dead", "relaunch")
    assert not psutil.pid_exists(first["pid"])


def test_without_a_watch_it_stays_as_it_is(stage):
    """``--no-watch``."""
    with run_of_a_stub(stage, "--no-watch") as (_, port, first):
        threading.Event().wait(15)
        assert state_of(port) == first
    assert len(stage.lives()) == 1


def test_a_server_has_the_hooks_of_frameworks(stage):
    """ms-swift's keeps its port by one of them."""
    story = "print('hooks', os.environ['RAYGUARD_FRAMEWORKS'], flush=True)\nraise SystemExit(3)"
    done = stage.run(stage.swift, "rollout", story=story, options=["--max-restarts", 0])
    assert b"hooks on" in done.stdout
