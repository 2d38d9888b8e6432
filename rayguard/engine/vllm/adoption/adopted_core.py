"""Cores that another process has started, in the place of what vLLM knows of those that it starts itself."""

from __future__ import annotations

import threading
from multiprocessing import connection
from typing import TYPE_CHECKING

from rayguard.process.deaths import note_exit, open_pidfd
from rayguard.process.tree import end

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rayguard.process.identity import ProcessId

_UNKNOWN_EXIT = 255  # as multiprocessing says of a child whose end nobody can tell
_LOOK_S = 1.0


class AdoptedCore:
    """As much of a ``multiprocessing`` process as is asked of an engine core.

    Raises:
        ProcessLookupError: It is dead.
    """

    name = "EngineCore"

    def __init__(self, process: ProcessId) -> None:
        self.process = process
        self.pid = process.pid
        self.sentinel = open_pidfd(process) or -1

    @property
    def exitcode(self) -> int | None:
        """How it ended, 255 where nobody can tell; None while it runs."""
        if self.process.alive():
            return None
        note_exit(self.process, None if self.sentinel < 0 else self.sentinel)
        return self.process.exitcode() or _UNKNOWN_EXIT

    def is_alive(self) -> bool:
        """Say whether it runs."""
        return self.process.alive()


class AdoptedCores:
    """In place of vLLM's ``CoreEngineProcManager``."""

    def __init__(self, processes: Sequence[AdoptedCore], mark: str) -> None:
        self.processes = list(processes)
        self.failed_proc_name: str | None = None
        self._mark = mark
        self._stopped = threading.Event()

    def shutdown(self, timeout: float | None = None) -> None:
        """End them, politely for ``timeout`` seconds."""
        self._stopped.set()
        end([one.process for one in self.processes], polite_s=timeout or 0.0, mark=self._mark)

    def monitor_engine_liveness(self) -> None:
        """Return when one of them is dead; blocks."""
        sentinels = [one.sentinel for one in self.processes if one.sentinel >= 0]
        while sentinels and not self._stopped.is_set():
            if connection.wait(sentinels, timeout=_LOOK_S):
                break
        if self._stopped.is_set():
            return
        self.failed_proc_name = next((one.name for one in self.processes if not one.is_alive()), None)
        self.shutdown()

    def sentinels(self) -> list[int]:
        """Return what becomes ready at their ends."""
        return [one.sentinel for one in self.processes]

    def finished_procs(self) -> dict[str, int]:
        """Return the exit codes of those that are dead, by name."""
        codes = {one.name: one.exitcode for one in self.processes}
        return {name: code for name, code in codes.items() if code is not None}
