"""What a flight recorder does by itself once a second: read memory and the machine, sum up the calls.

About 0.2 ms a second. It also removes the recordings of processes that died more than a day ago.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Protocol

from rayguard.process import owned_files
from rayguard.process.flight import layout
from rayguard.process.flight.layout import LiveWord, RecordKind
from rayguard.process.flight.readings import Machine

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from pathlib import Path

    from rayguard.process.flight.rings import Rings

EVERY_S = 1.0
KEEP_DEAD_S = 86_400.0
_CLOSE_S = 5.0


class Recorder(Protocol):
    """What a sampler needs of the recorder that it fills (``rayguard.process.flight.writer``)."""

    path: Path
    rings: Rings
    node_ratio: float

    def harmless(self) -> AbstractContextManager[object, bool]:
        """Return a context in which errors are counted and stay."""

    def running(self) -> int:
        """Return the place of the method that began last, 0 for none."""

    def methods(self) -> list[int]:
        """Return the places of all methods."""

    def read_memory(self, now: int, method: int) -> None:
        """Record the memory of this process."""

    def write_collections(self, now: int, *, at_least_ns: int) -> None:
        """Record what was collected since the last time."""


class Sampler:
    """The thread beside a recorder. A fork takes the object along but not the thread."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._machine: Machine | None = None
        self._recorded: dict[int, tuple[int, int]] = {}  # calls begun and ended, as of the last record
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, every_s: float) -> None:
        """Sample from now on."""
        self._thread = threading.Thread(
            target=self._run, args=(every_s,), name="rayguard-recorder", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """End the thread; bounded by one sample."""
        self._stop.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_CLOSE_S)

    def sample(self) -> None:
        """Take one sample of everything. Never raises."""
        recorder = self._recorder
        with recorder.harmless():
            now = time.monotonic_ns()
            self._read_machine()
            recorder.read_memory(now, recorder.running())
            self._sum_up_calls(now)
            recorder.write_collections(now, at_least_ns=1)

    def _run(self, every_s: float) -> None:
        recorder = self._recorder
        with recorder.harmless():
            owned_files.sweep(recorder.path.parent, layout.KIND, layout.ENDING, older_than_s=KEEP_DEAD_S)
        while not self._stop.is_set():
            self.sample()
            self._stop.wait(every_s)

    def _read_machine(self) -> None:
        recorder = self._recorder
        if self._machine is None:
            self._machine = Machine()
            group = self._machine.group
            recorder.rings.write_text(layout.LABELS, RecordKind.GROUP, str(group.directory) if group else "")
        seen = self._machine.read()
        recorder.node_ratio = seen.node_ratio
        for word, kills in ((LiveWord.GROUP_KILLS, seen.group_kills), (LiveWord.NODE_KILLS, seen.node_kills)):
            recorder.rings.words[word] = 0 if kills is None else kills + 1

    def _sum_up_calls(self, now: int) -> None:
        words = self._recorder.rings.words
        for at in self._recorder.methods():
            begun, ended = int(words[at]), int(words[at + layout.ENDED])
            before = self._recorded.get(at, (0, 0))
            if (begun, ended) == before and begun <= ended:
                continue
            self._recorded[at] = (begun, ended)
            since = begun - before[0], max(0, ended - before[1])
            running = max(0, begun - ended)
            self._recorder.rings.write(layout.NUMBERS, RecordKind.CALLS, now, at, *since, running)
