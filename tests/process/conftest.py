"""Real processes to watch and to end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from rayguard.process.identity import ProcessId


class Processes:
    """Starts children of the test and ends what is left of them."""

    def __init__(self):
        self._started: list[subprocess.Popen[bytes]] = []

    def sleeper(self, **options) -> subprocess.Popen[bytes]:
        return self._keep(["sleep", "60"], **options)

    def python(self, code: str, **options) -> subprocess.Popen[bytes]:
        """Run ``code``; returns when it has printed a line (kept as ``said``)."""
        child = self._keep([sys.executable, "-c", code], stdout=subprocess.PIPE, **options)
        child.said = child.stdout.readline().decode().strip()
        return child

    def _keep(self, command, **options):
        child = subprocess.Popen(command, **options)
        self._started.append(child)
        return child

    @staticmethod
    def identity(child) -> ProcessId:
        found = ProcessId.of(child.pid)
        assert found is not None
        return found

    @staticmethod
    def user(child) -> int:
        return Path(f"/proc/{child.pid}").stat().st_uid

    @staticmethod
    def until(condition, limit_s: float = 5.0) -> bool:
        """Wait for ``condition``; say whether it came true in time."""
        pause = threading.Event()
        for _ in range(int(limit_s / 0.01)):
            if condition():
                return True
            pause.wait(0.01)
        return bool(condition())

    def stop(self, child) -> None:
        os.kill(child.pid, signal.SIGSTOP)
        assert self.until(lambda: self.identity(child).state() == "T")

    def end_all(self):
        for child in self._started:
            if child.poll() is None:
                child.kill()
            child.wait(10)
            if child.stdout is not None:
                child.stdout.close()


@pytest.fixture
def processes():
    started = Processes()
    yield started
    started.end_all()
