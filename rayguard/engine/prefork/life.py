"""One life of the prefork server's process: started, asked, ended.

Covers: executing it with the mark of its owner and what it needs to know, what it reported about its
preload, whether its environment is still the owner's, and its end, by force at a deadline. Does NOT
decide when a server is wanted or replaced: that is ``rayguard.engine.prefork.server``.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from multiprocessing import connection, spawn
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

import psutil

from rayguard.engine.prefork import left_engines
from rayguard.engine.prefork.process import complain
from rayguard.engine.prefork.variables import ImportedWith
from rayguard.process.cleanup.orphans import wait_until_dead
from rayguard.process.cleanup.shm import listened_to
from rayguard.process.identity import ProcessId, mark_environment, owner_mark
from rayguard.process.tree import end as end_processes

if TYPE_CHECKING:
    from collections.abc import Sequence

_MAIN = (
    "import json, os, sys; given = json.loads(sys.argv[1]); sys.path[:] = given['sys_path']; "
    "given['apart'] and (os.fork() and os._exit(0) or os.setpgid(0, 0)); "
    "from rayguard.engine.prefork.preload import serve; serve(sys.argv[1])"
)
_SAYS_PID_S = 30.0  # an interpreter's start: 0.1 s
_LONGEST_FOLDER = 100  # a socket's path has at most 107 characters
_SHORT_FOLDER = "/tmp"  # noqa: S108 - for a private folder in it


class _Report(TypedDict):
    """What a server says of its preload (``preload.serve``)."""

    refusal: str
    read: list[str]
    environ: dict[str, str]


class ServerLife:
    """One server process, from its start to its end."""

    def __init__(self, modules: Sequence[str], *, keep_s: float = 0.0) -> None:
        """Start it.

        ``keep_s``: seconds for which it outlives its owner and waits for another one. It is in a process
        group of its own then, and nobody's child: Ray ends the group and what descends from an actor that it
        ends. Not in a session of its own: with Linux' autogroups each session is scheduled apart, engines
        wait for each other in longer slices, and steps took 1.5 times as long.
        """
        self._keep_s, self._apart = keep_s, keep_s > 0
        self._process: ProcessId | None = None
        self._environ = os.environ | mark_environment(owner_mark(ProcessId.me()))
        self._owner_pid = os.getpid()
        self._report: _Report | None = None
        self._report_lock, self._pid_lock = threading.Lock(), threading.Lock()
        self.refused = False  # by its own judgement: another one would refuse too
        self._folder = _private_folder()
        self.address = f"{self._folder}/socket"
        alive_r, self._alive_w = os.pipe()
        self._reader, report_w = connection.Pipe(duplex=False)
        _let_go_in_forks()
        _lives.add(self)
        try:
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind(self.address)
                listener.listen()
                passed = {"listener": listener.fileno(), "alive": alive_r, "report": report_w.fileno()}
                self._popen = self._execute(modules, passed)
        except BaseException:
            os.close(self._alive_w)
            shutil.rmtree(self._folder, ignore_errors=True)
            raise
        finally:
            os.close(alive_r)
            report_w.close()

    def _execute(self, modules: Sequence[str], passed: dict[str, int]) -> subprocess.Popen[bytes]:
        path = [os.fspath(entry) if entry else os.getcwd() for entry in sys.path]  # noqa: PTH109 - a string
        arguments = json.dumps(
            {
                **passed,
                "modules": modules,
                "sys_path": path,
                "folder": self._folder,
                "apart": self._apart,
                "keep_s": self._keep_s,
            }
        )
        flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]  # noqa: SLF001
        # OpenBLAS (numpy's, scipy's) starts its threads when it is loaded, unless it is to have one.
        return subprocess.Popen(
            [os.fsdecode(spawn.get_executable()), *flags, "-c", _MAIN, arguments],
            env={**self._environ, "OPENBLAS_NUM_THREADS": "1"},
            pass_fds=tuple(passed.values()),
            stdin=subprocess.DEVNULL,
        )

    @property
    def process(self) -> ProcessId:
        """The process: what was started, or what that has forked to be nobody's child."""
        with self._pid_lock:
            if self._process is None:
                pid = self._popen.pid
                if self._apart:
                    pid = 0
                    with contextlib.suppress(EOFError, OSError):  # it ended before it could say so
                        pid = int(self._reader.recv_bytes()) if self._reader.poll(_SAYS_PID_S) else 0
                    self._popen.wait()
                self._process = ProcessId.of(pid) or ProcessId(pid, 0)
            return self._process

    @property
    def pid(self) -> int:
        """Its process id; 0 for none."""
        return self.process.pid

    @property
    def alive(self) -> bool:
        """False also in a process that was forked from the owner: the server is not its own."""
        if self._owner_pid != os.getpid():
            return False
        return self.process.alive() if self._apart else self._popen.poll() is None

    def refusal(self, timeout_s: float) -> str | None:
        """Return why it does not serve, '' when it serves, None when it has not said so in time.

        Why it does not is logged and counted when it is heard first.
        """
        if self._report is None and self.process.pid and connection.wait([self._reader], timeout_s):
            with self._report_lock:
                if self._report is None:
                    self._report = self._received()
        return None if self._report is None else self._report["refusal"]

    def _received(self) -> _Report:
        try:
            report: _Report = json.loads(self._reader.recv_bytes())
        except (EOFError, OSError):
            code = self.process.exitcode() if self._apart else self._popen.poll()
            why = f"it ended during its preload (exit code {code})"
            report = {"refusal": why, "read": [], "environ": {}}
        else:
            self.refused = bool(report["refusal"])
        if report["refusal"]:
            complain(f"engines are spawned, the server does not serve: {report['refusal']}")
        return report

    def changed(self) -> tuple[str, ...]:
        """Return the environment variables that its preload read and that are others now."""
        report = self._report or _Report(refusal="", read=[], environ=self._environ)
        imported = ImportedWith(self.pid, self._environ, report["environ"], frozenset(report["read"]))
        return imported.differs(os.environ)

    def stopped(self) -> bool:
        """Say whether a signal stopped it: asking it to fork would take until the deadline."""
        this = ProcessId.of(self.pid)
        return this is not None and this.state() in {"T", "t"}

    def children(self) -> bool:
        """Say whether an engine hangs on it."""
        try:
            return bool(psutil.Process(self.pid).children())
        except psutil.Error:
            return False

    def end(self, deadline_s: float) -> None:
        """Ask it to end, by force at the deadline. One that still imports would not hear: at once."""
        if self._owner_pid != os.getpid():
            return
        self.let_go()
        if self._report is None:
            self._kill()
        self._wait(deadline_s)
        self._kill()
        self._wait(deadline_s + 1.0)
        self._reader.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _kill(self) -> None:
        if self._apart:
            end_processes([self.process], polite_s=0.0, force_s=0.0)
        else:
            self._popen.kill()

    def _wait(self, limit_s: float) -> None:
        if self._apart:
            wait_until_dead(self.process, time.monotonic() + limit_s)
            return
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._popen.wait(limit_s)

    def let_go(self) -> None:
        """Close the alive pipe: the owner to end the server, its forks so as not to keep it alive."""
        if self._alive_w >= 0:
            os.close(self._alive_w)
            self._alive_w = -1


def _private_folder() -> str:
    """Make the folder for the socket, after removing those of servers that were killed with their owners.

    Named after this boot of this machine: a folder that several share shows sockets of others as dead.
    """
    prefix = f"rayguard-prefork-{Path('/proc/sys/kernel/random/boot_id').read_text(encoding='ascii')[:8]}-"
    for place in {tempfile.gettempdir(), _SHORT_FOLDER}:
        for folder in Path(place).glob(f"{prefix}*"):
            if listened_to(str(folder / "socket")) is False:
                shutil.rmtree(folder, ignore_errors=True)
    made = tempfile.mkdtemp(prefix=prefix)
    if len(made) <= _LONGEST_FOLDER:
        return made
    shutil.rmtree(made)
    return tempfile.mkdtemp(prefix=prefix, dir=_SHORT_FOLDER)


class InheritedLife(ServerLife):
    """The server of a dead owner, from when it became ours.

    Raises:
        OSError, ValueError: It is not there, or has another owner.
    """

    def __init__(self, address: str, keep_s: float) -> None:
        self._keep_s, self._apart = keep_s, True
        self._owner_pid = os.getpid()
        self._report_lock, self._pid_lock = threading.Lock(), threading.Lock()
        self.refused = False
        self.address, self._folder = address, os.path.dirname(address)  # noqa: PTH120 - a string
        alive_r, self._alive_w = os.pipe()
        self._reader, unused = connection.Pipe(duplex=False)
        unused.close()
        _let_go_in_forks()
        _lives.add(self)
        try:
            pid, told = left_engines.ask(address, alive_r)
        except BaseException:
            self.let_go()
            raise
        finally:
            os.close(alive_r)
        self._process = ProcessId.of(pid) or ProcessId(pid, 0)
        self._environ = told.pop("began")  # type: ignore[assignment]
        self._report = _Report(**told)  # type: ignore[typeddict-item]


_lives: weakref.WeakSet[ServerLife] = weakref.WeakSet()


@functools.cache
def _let_go_in_forks() -> None:
    """Once per process: a fork of the owner (a DataLoader worker, say) must not keep servers alive."""

    def let_go() -> None:
        for life in [*_lives]:
            life.let_go()

    os.register_at_fork(after_in_child=let_go)
