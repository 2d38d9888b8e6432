"""Things that look like leftovers: real processes and real files, most of which must be left alone.

Each is made with the one flaw that its name says; ``Zoo.ours`` are those without a flaw, which must go.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path

from rayguard.process.cleanup import orphans
from rayguard.process.identity import OWNER_ENV, ProcessId, owner_mark
from tests.process.lookalike_cage import CORE, DEADLINE_S, NOBODY, Alike, dead_process
from tests.process.lookalike_files import Files

__all__ = ["CLAIMS", "CORE", "DEADLINE_S", "Alike", "Zoo", "dead_process", "zoo"]

CLAIMS = (
    "import sys, time\n"
    "from rayguard.process.identity import claim\n"
    "kept = [claim(mark) for mark in sys.argv[1:]]\n"
    "print('up', flush=True)\n"
    "time.sleep(600)\n"
)


class Zoo(Files):
    """Files and processes."""

    def spare_process(self, kind: str, child: subprocess.Popen) -> None:
        """Expect ``child`` to live on."""
        it = self.identity(child)
        self.alikes.append(Alike(kind, f"(pid {child.pid})", it.alive))

    def own_process(self, kind: str, child: subprocess.Popen) -> None:
        """Expect ``child`` to be ended."""
        it = self.identity(child)
        self.ours.append(Alike(kind, f"(pid {child.pid})", it.alive))

    def flawed_processes(self, count: int) -> None:
        """Start ``count`` processes of each flaw that a process can have."""
        gone = owner_mark(self.dead)
        stopped, headless = (owner_mark(self.identity(one)) for one in (self.stopped(), self.headless()))
        never = f"{self.dead.pid}-{self.dead.started + 10**12}"
        for _ in range(count):
            start = self.process
            self.spare_process("a program that inherited the mark", start("redis-server", gone))
            self.spare_process("the mark in its arguments only", start(f"{CORE} {OWNER_ENV}={gone}", None))
            self.spare_process("an engine without a mark", start(CORE, None))
            self.spare_process("its owner lives", start(CORE, owner_mark(ProcessId.me())))
            self.spare_process("its owner is stopped", start(CORE, stopped))
            self.spare_process("its owner lost its first thread", start(CORE, headless))
            self.spare_process("older than its owner", start(CORE, never))
            for mark in ("", "0", "-", "12", "1-", "-5-7", "a-b", f"{gone}x", f" {gone}"):
                self.spare_process("no mark", start(CORE, mark))
            if os.geteuid() == 0:
                self.spare_process("another user's", start(CORE, gone, user=NOBODY))
        for _ in range(max(1, count // 4)):
            self._under_a_server(gone)
            self.spare_process("claims of two owners", self.python(CLAIMS, gone, owner_mark(self.used_by)))
            self.spare_process("a claim of a living owner", self.python(CLAIMS, owner_mark(ProcessId.me())))
            self._elsewhere(gone)

    def _under_a_server(self, mark: str) -> None:
        """The core of a user's own vLLM server, which inherited the mark and lives."""
        code = (
            "import subprocess, time\n"
            f"child = subprocess.Popen(['{CORE}', '600'], executable='/bin/sleep')\n"
            "print(child.pid, flush=True)\n"
            "time.sleep(600)\n"
        )
        command = [sys.executable, "-c", code]
        environment = {**os.environ, OWNER_ENV: mark}
        server = self._keep(subprocess.Popen(command, stdout=subprocess.PIPE, env=environment))
        core = int(server.stdout.readline())
        it = ProcessId.of(core)
        self.alikes.append(Alike("the core of a user's server", f"(pid {core})", it.alive))
        self.spare_process("a user's server that inherited the mark", server)
        self._held.append(it)

    def _elsewhere(self, mark: str) -> None:
        """An engine in a pid namespace of its own, as in a container; needs the right to make one."""
        inside = ["env", f"{OWNER_ENV}={mark}", "bash", "-c", f"exec -a {CORE} sleep 600"]
        command = ["unshare", "--pid", "--fork", "--kill-child", *inside]
        child = self._keep(subprocess.Popen(command, stderr=subprocess.DEVNULL))
        deadline = time.monotonic() + 3
        while child.poll() is None and time.monotonic() < deadline:
            inner = Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text().split()
            if inner and CORE.encode() in Path(f"/proc/{inner[0]}/cmdline").read_bytes():
                it = ProcessId.of(int(inner[0]))
                self.alikes.append(Alike("in another pid namespace", f"(pid {it.pid})", it.alive))
                return
            threading.Event().wait(0.01)

    def stale(self, count: int) -> list[tuple[orphans.Marked, ProcessId]]:
        """Return orphans that were found, but whose pids belong to others by now."""
        made = []
        for _ in range(count):
            innocent = self.identity(self.process("sleep", None))
            orphan = self.process(CORE, owner_mark(self.dead))
            found = next(one for one in orphans.find() if one.process.pid == orphan.pid)
            orphan.kill()
            orphan.wait(DEADLINE_S)
            reused = replace(found, process=ProcessId(innocent.pid, innocent.started - 1))
            forged = replace(found, process=innocent)  # found wrong: the second look must see it
            made += [(reused, innocent), (forged, innocent)]
        return made

    def own_processes(self, count: int) -> None:
        """Start ``count`` of each kind that is provably ours and orphaned."""
        gone = owner_mark(self.dead)
        zombie = owner_mark(self.identity(self.zombie()))
        for _ in range(count):
            self.own_process("an engine core", self.process(CORE, gone))
            self.own_process("a prefork server", self.process("rayguard::prefork", gone))
            stopped = self.process("VLLM::Worker", gone)
            stopped.send_signal(signal.SIGSTOP)
            self.own_process("a stopped worker", stopped)
        self.own_process("a claim", self.python(CLAIMS, gone))
        self.own_process("of an owner that is a zombie", self.process(CORE, zombie))


@contextlib.contextmanager
def zoo():
    """Give a zoo with a home and a room of its own."""
    with tempfile.TemporaryDirectory(prefix="rayguard-zoo-") as room:
        (Path(room) / "room").mkdir()
        made = Zoo(Path(room) / "home", Path(room) / "room")
        try:
            yield made
        finally:
            made.close()
