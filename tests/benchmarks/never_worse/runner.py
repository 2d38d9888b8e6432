"""Has programs run by a driver process of one way, side by side; a driver that dies is replaced."""

from __future__ import annotations

import contextlib
import itertools
import json
import queue
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import psutil

from tests.benchmarks.never_worse.driver import READY, REPOSITORY, WORD

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from tests.benchmarks.never_worse.program import Program

_LONGEST_S = 400.0  # of one program
_STARTS = 3  # of a driver: on a busy machine Ray itself gives up before its node is there
_ENDING_S = 30.0
_GONE_S = 5.0  # from the end of what it says to its own


class Driver:
    """The process that runs programs in one way. Made when it is first needed; what it says goes to ``log``."""

    def __init__(self, way: str, log: Path) -> None:
        self.way, self.log = way, log
        self._process: subprocess.Popen[str] | None = None
        self._ready: set[int] = set()  # pids of those whose Ray runs
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._waiting: dict[int, tuple[subprocess.Popen[str], queue.Queue[dict[str, Any] | None]]] = {}

    def run(self, program: Program) -> dict[str, Any]:
        """Return what became of ``program``; of one that never ended, that every call hung.

        Raises:
            RuntimeError: The driver's Ray does not start: nothing can be said of the program.
        """
        for _ in range(_STARTS):
            ran, process = self._ran(program)
            if ran is not None:
                return ran
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_GONE_S)
            if process.returncode is None or process.pid in self._ready:
                break
        else:
            raise RuntimeError(f"the driver {self.way} did not start {_STARTS} times: see {self.log}")
        hung = [{"number": call.number, "outcome": "hung"} for call in program.calls]
        return {"seed": program.seed, "answers": hung, "incidents": [], "fired": [], "wall_s": _LONGEST_S}

    def _ran(self, program: Program) -> tuple[dict[str, Any] | None, subprocess.Popen[str]]:
        mine: queue.Queue[dict[str, Any] | None] = queue.Queue()
        with self._lock:
            number = next(self._numbers)
            process = self._started()
            self._waiting[number] = (process, mine)
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(json.dumps({"run": number, "program": program.to_json()}) + "\n")
                process.stdin.flush()
        try:
            ran = mine.get(timeout=_LONGEST_S)
        except queue.Empty:
            ran = None
        with self._lock:
            self._waiting.pop(number, None)
        return ran, process

    def end(self) -> None:
        """End the process and all that it started."""
        process, self._process = self._process, None
        if process is None:
            return
        children = _descendants(process.pid)
        try:
            assert process.stdin is not None
            process.stdin.close()
            process.wait(_ENDING_S)
        except (subprocess.TimeoutExpired, OSError):
            process.kill()
            process.wait(_ENDING_S)
        for child in children:
            with contextlib.suppress(psutil.Error):
                child.kill()

    def _started(self) -> subprocess.Popen[str]:
        if self._process is None or self._process.poll() is not None:
            if self._process is not None and self._process.stdin is not None:
                with contextlib.suppress(OSError):  # what it was sent and never read
                    self._process.stdin.close()
            with self.log.open("a") as log:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "tests.benchmarks.never_worse.driver", self.way],
                    cwd=REPOSITORY,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                    errors="replace",
                    start_new_session=True,
                )
            threading.Thread(target=self._read, args=(self._process,), daemon=True).start()
        return self._process

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout as lines:
            self._take(process, lines)

    def _take(self, process: subprocess.Popen[str], lines: Iterable[str]) -> None:
        for line in lines:
            if line.startswith(READY):
                self._ready.add(process.pid)
            elif line.startswith(WORD):
                try:
                    ran = json.loads(line.removeprefix(WORD))
                except ValueError:  # the others' answers still come
                    print(f"{self.way}: cannot be read: {line[:200]!r}", file=sys.stderr)
                    continue
                with self._lock:
                    waiting = self._waiting.get(ran.pop("run"))
                if waiting is not None:
                    waiting[1].put(ran)
        with self._lock:  # it ended: whoever waits for it need not wait longer
            for asked, mine in self._waiting.values():
                if asked is process:
                    mine.put(None)


def _descendants(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.Error:
        return []
