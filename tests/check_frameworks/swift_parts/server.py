"""``swift rollout`` on the CPU as a command that can be struck, bare or under ``rayguard run``."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import threading
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tests.check_frameworks.swift_parts.cpu import environment_of
from tests.check_frameworks.swift_parts.training import RAYGUARD, SWIFT, TEMPLATE

HOST, START_S, END_S = "127.0.0.1", 400.0, 60.0
ENGINE, WORKER = "its vLLM engine", "its llm_worker"
_PAUSE = threading.Event()


def free_port():
    """Return a port that nobody has."""
    with socket.socket() as free:
        free.bind((HOST, 0))
        return free.getsockname()[1]


def strike(port: int, what: str) -> int:
    """Kill a process of the server at ``port``; return which one.

    Raises:
        LookupError: There is none.
    """
    listening = [
        one
        for one in psutil.net_connections("tcp")
        if one.status == psutil.CONN_LISTEN and one.laddr.port == port and one.pid is not None
    ]
    if not listening:
        raise LookupError(f"nobody listens on {port}")
    server = psutil.Process(listening[0].pid)
    below = server.children(recursive=True)
    found = {
        WORKER: [one for one in server.children() if "spawn_main" in " ".join(one.cmdline())],
        ENGINE: [one for one in below if "".join(one.cmdline()[:1]).startswith("VLLM::")],
    }[what]
    if not found:
        raise LookupError(f"{what} is not among {[one.cmdline() for one in below]}")
    found[-1].kill()  # of an engine's processes the one that computes
    return found[-1].pid


@dataclass
class Rollout:
    """A server of one model on one port."""

    model: Path
    guarded: bool
    log: Path
    home: Path
    port: int = field(default_factory=free_port)
    process: subprocess.Popen | None = field(default=None, init=False)

    @property
    def url(self):
        return f"http://{HOST}:{self.port}"

    def start(self):
        """Start it, and wait until it says that it is well; return after how many seconds.

        Raises:
            TimeoutError: It does not.
        """
        words = [
            SWIFT, "rollout", "--model", str(self.model), *TEMPLATE, "--host", HOST, "--port", str(self.port),
            "--vllm_max_model_len", "512", "--vllm_enforce_eager", "true", "--vllm_max_num_seqs", "8",
        ]  # fmt: skip
        if self.guarded:
            words = [RAYGUARD, "run", "--max-restarts", "9", "--", *words]
        began = time.monotonic()
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                words, cwd=self.log.parent, env=environment_of(RAYGUARD_HOME=self.home), stdin=subprocess.DEVNULL,
                stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        while time.monotonic() - began < START_S and self.process.poll() is None:
            if self.is_well():
                return time.monotonic() - began
            _PAUSE.wait(0.2)
        raise TimeoutError(f"no server: {self.said()[-3000:]}")

    def is_well(self):
        """Say whether it says that it is."""
        try:
            urllib.request.urlopen(f"{self.url}/health", timeout=10).close()
        except OSError:
            return False
        return True

    def said(self):
        """Return what it has printed."""
        return self.log.read_text("utf-8", errors="replace")

    def close(self):
        """End it with all its processes."""
        if self.process is None or self.process.poll() is not None:
            return
        left = psutil.Process(self.process.pid).children(recursive=True)
        if self.guarded:
            self.process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(END_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        for one in left:
            with contextlib.suppress(psutil.Error):
                one.kill()
        self.process.wait()
