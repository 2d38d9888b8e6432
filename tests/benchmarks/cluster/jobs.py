"""Jobs that run beside the check, each in a process of its own, as their users start them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from typing_extensions import Self

_LOOK_S = 0.2
_END_S = 20.0
_WORDS = 2_000


class Job:
    """``with Job("user", [...arguments]) as job: job.until(step=3)``; ended by its pid where it has not ended."""

    def __init__(self, program: str, arguments: list[str], log: Path, home: Path) -> None:
        self._program, self._arguments, self._log, self._home = program, arguments, log, home
        self._pause = threading.Event()
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        path = os.pathsep.join(filter(None, [str(Path.cwd()), os.environ.get("PYTHONPATH", "")]))
        with self._log.with_suffix(".out").open("wb") as out, self._log.with_suffix(".err").open("wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, self._program, *self._arguments],
                stdout=out,
                stderr=err,
                env={**os.environ, "PYTHONPATH": path, "RAYGUARD_HOME": str(self._home)},  # that of its node
            )
        return self

    def __exit__(self, *_: object) -> None:
        assert self.process is not None
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(_END_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(_END_S)

    def lines(self) -> list[dict[str, Any]]:
        """Return what it has printed so far."""
        text = self._log.with_suffix(".out").read_text(errors="replace")
        return [json.loads(line) for line in text.splitlines() if line.startswith("{") and line.endswith("}")]

    def until(self, key: str, limit_s: float, least: float = 0.0) -> float:
        """Wait for a line with ``key`` of at least ``least``; return the value.

        Raises:
            TimeoutError: There was none in time.
            RuntimeError: The job ended without one.
        """
        assert self.process is not None
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline:
            ended = self.process.poll() is not None
            found = [line[key] for line in self.lines() if key in line and line[key] >= least]
            if found:
                return float(found[-1])
            if ended:
                raise RuntimeError(f"{self._program} ended ({self.process.returncode}): {self._words()}")
            self._pause.wait(_LOOK_S)
        raise TimeoutError(f"{self._program} said no {key!r} >= {least} in {limit_s:.0f} s: {self._words()}")

    def _words(self) -> str:
        return self._log.with_suffix(".err").read_text(errors="replace")[-_WORDS:]
