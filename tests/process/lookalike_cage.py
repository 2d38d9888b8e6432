"""Where look-alikes live: processes that are started, and taken away at the end with all that was made."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from rayguard.process.cleanup.belongings import Belonging
from rayguard.process.identity import OWNER_ENV, ProcessId

DEADLINE_S = 30.0
CORE = "VLLM::EngineCore"
NOBODY = 65_534
# The main thread ends and the process lives on: it shows as a zombie.
HEADLESS = (
    "import ctypes, os, threading, time\n"
    "threading.Thread(target=lambda: (print('up', flush=True), time.sleep(600))).start()\n"
    "ctypes.CDLL(None).pthread_exit(None)\n"
)


@dataclass(frozen=True)
class Alike:
    """One thing that was offered: what it is, its name in ``Leftover.name``, and whether it is still there."""

    kind: str
    name: str
    there: object  # a call


def dead_process() -> ProcessId:
    """Return what a process was that has ended."""
    child = subprocess.Popen(["sleep", "60"])
    it = ProcessId.of(child.pid)
    child.kill()
    child.wait(DEADLINE_S)
    assert it is not None
    return it


def until(condition, limit_s=DEADLINE_S):
    """Wait for ``condition``."""
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline
        threading.Event().wait(0.01)


class Cage:
    """Starts processes, remembers what was made, and takes away what is left of it."""

    def __init__(self, home: Path, room: Path) -> None:
        self.home, self.room = home, room
        self.alikes: list[Alike] = []
        self.ours: list[Alike] = []
        self.dead = dead_process()
        self.used_by = dead_process()
        self._children: list[subprocess.Popen] = []
        self._paths: list[Path] = []
        self._held: list[object] = []
        self._notes: dict[tuple[ProcessId, str], list[Belonging]] = {}

    def process(self, title: str, mark: str | None, **options) -> subprocess.Popen:
        """Start a process that calls itself ``title`` and has ``mark`` in its environment."""
        environment = {k: v for k, v in os.environ.items() if k != OWNER_ENV}
        if mark is not None:
            environment[OWNER_ENV] = mark
        sleep = "/bin/sleep"
        return self._keep(subprocess.Popen([title, "600"], executable=sleep, env=environment, **options))

    def python(self, code: str, *arguments: str, mark: str | None = None) -> subprocess.Popen:
        """Run ``code``; returns when it has printed a line."""
        environment = {k: v for k, v in os.environ.items() if k != OWNER_ENV}
        if mark is not None:
            environment[OWNER_ENV] = mark
        command = [sys.executable, "-c", code, *arguments]
        child = self._keep(subprocess.Popen(command, stdout=subprocess.PIPE, env=environment))
        assert child.stdout.readline()
        return child

    def stopped(self) -> subprocess.Popen:
        child = self.process("sleep", None)
        child.send_signal(signal.SIGSTOP)
        until(lambda: self.identity(child).state() == "T")
        return child

    def zombie(self) -> subprocess.Popen:
        child = self.process("sleep", None)
        child.kill()
        until(lambda: ProcessId.of(child.pid).state() == "Z")
        return child

    def headless(self) -> subprocess.Popen:
        child = self.python(HEADLESS)
        until(lambda: self.identity(child).state() == "Z")
        return child

    @staticmethod
    def identity(child) -> ProcessId:
        found = ProcessId.of(child.pid)
        assert found is not None
        return found

    def _keep(self, child):
        self._children.append(child)
        return child

    def mine(self, name: str) -> bool:
        """Say whether a leftover of this name was made here: on this machine are others too."""
        return any(name == one.name or name.endswith(one.name) for one in (*self.alikes, *self.ours))

    def close(self) -> None:
        for held in self._held:
            if isinstance(held, ProcessId):
                with contextlib.suppress(ProcessLookupError):
                    if held.alive():
                        os.kill(held.pid, signal.SIGKILL)
            else:
                held.close()
        for child in self._children:
            if child.poll() is None:
                child.kill()
            child.wait(DEADLINE_S)
            if child.stdout is not None:
                child.stdout.close()
        for path in self._paths:
            with contextlib.suppress(FileNotFoundError):
                path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
