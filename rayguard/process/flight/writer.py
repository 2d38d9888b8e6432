"""The writer of a flight recording: what a process does, in a mapped file that survives its SIGKILL.

Which method runs stands in live words, stored at each call; memory, calls a second, steps and garbage
collections are records. The file is ``rings``, what a reader makes of it ``recording``; the one recorder of
this process is ``recorder``.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import threading
import time
import weakref
from pathlib import Path
from typing import TYPE_CHECKING

from rayguard.process import owned_files
from rayguard.process.flight import layout
from rayguard.process.flight.layout import BEGUN_AT, ENDED, ENDED_AT, LONGEST, UNTOLD, LiveWord, RecordKind
from rayguard.process.flight.rings import Rings
from rayguard.process.flight.rounds import ROUND_NS, Steps
from rayguard.process.flight.sampler import EVERY_S, Sampler
from rayguard.process.resident import resident
from rayguard.redact import redacted

if TYPE_CHECKING:
    from collections.abc import Callable


_NS = 1_000_000_000
_FED_NS = 3 * _NS  # the recorder reads memory itself when nobody has told it for so long
_COLLECTION_NS = _NS // 20
_OLDEST = 2  # of gc's generations
_LONG_AGO = -(1 << 62)

_recorders: weakref.WeakSet[FlightRecorder] = weakref.WeakSet()


class FlightRecorder:
    """Writes the recording of the calling process. A forked child has it switched off.

    Nothing here raises but the constructor (``OSError``: a full disk, a directory that is not ours);
    what goes wrong later is given to ``failed``.
    """

    def __init__(
        self,
        home: Path | str,
        *,
        title: str = "",
        actor_id: str = "",
        failed: Callable[[Exception], None] | None = None,
    ) -> None:
        self.path = owned_files.path_of(Path(home).absolute() / "flight", layout.KIND, layout.ENDING)
        self.failures = 0
        self._failed = failed
        self.rings = Rings(self.path)
        self.words = self.rings.words
        self._at: dict[tuple[str, str], int] = {}
        self._begun: dict[int, itertools.count[int]] = {}
        self._ended: dict[int, itertools.count[int]] = {}
        self._due_ns, self._longest = dict[int, int](), dict[int, int]()
        self._meeting = threading.RLock()  # of a signal handler too
        self.node_ratio = 0.0
        self._fed_ns = _LONG_AGO
        self._step = -1
        self._private = 0  # as it was read last
        self._round = Steps()
        self._collected = [0, 0, 0]  # ns, collections, objects found since the last record
        self._label(title, actor_id)
        self._sampler: Sampler | None = None
        gc.callbacks.append(self._on_gc)
        _recorders.add(self)

    def _label(self, title: str, actor_id: str) -> None:
        self.rings.write_text(layout.LABELS, RecordKind.TITLE, title)
        self.rings.write_text(layout.LABELS, RecordKind.ACTOR, actor_id)
        with contextlib.suppress(OSError):
            stderr = os.readlink("/proc/self/fd/2")  # noqa: PTH115 - compared as text
            if stderr.startswith("/") and Path(stderr).is_file():
                self.rings.write_text(layout.LABELS, RecordKind.STDERR, stderr)

    # -- the hot path

    def begin(self, owner: str, name: str) -> int:
        """Note that method ``name`` of class ``owner`` begins; give what is returned to ``end``."""
        at = self._at.get((owner, name))
        if at is None:
            at = self._meet(owner, name)
        words = self.words
        words[at] = next(self._begun[at])
        words[at + BEGUN_AT] = time.monotonic_ns()
        return at

    def end(self, at: int) -> None:
        """Note that the call has ended, well or not."""
        words = self.words
        ended = words[at + ENDED] = next(self._ended[at])
        now = words[at + ENDED_AT] = time.monotonic_ns()
        took = now - words[at + BEGUN_AT] if words[at] == ended else UNTOLD
        if took > self._longest[at]:
            self._longest[at] = words[at + LONGEST] = took
        if now >= self._due_ns[at]:
            self._call_ended(at, now)

    def _meet(self, owner: str, name: str) -> int:
        with self._meeting:
            number = len(self._at)
            at = self._at.get((owner, name))
            if at is not None:
                return at
            if number >= layout.METHODS:  # no room: they share the words of nobody's method
                at = layout.method_at(layout.METHODS - 1)
                self.words[LiveWord.CALLS_LOST] = number
            else:
                at = layout.method_at(number)
                label = f"{owner}.{name}" if number < layout.METHODS - 1 else "other methods"
                self.rings.write_text(layout.LABELS, RecordKind.METHOD, f"{at} {label}")
                self._begun[at], self._ended[at] = itertools.count(1), itertools.count(1)
                self._due_ns[at] = self._longest[at] = 0
            self._at[owner, name] = at
            return at

    def _call_ended(self, at: int, now: int) -> None:
        self._due_ns[at] = now + ROUND_NS
        if not self.rings.open:
            return
        with self.harmless():
            self.read_memory(now, at)
            if self._step < 0:
                number, private = self.words[at + ENDED], self._private
                numbers = number, number, private, private, at
                self.rings.write(layout.ROUNDS, RecordKind.CALL_ROUND, now, *numbers)

    # -- what others report

    def record_memory(
        self,
        *,
        private: int,
        shared: int = 0,
        device: int = 0,
        node_ratio: float | None = None,
        step: int | None = None,
    ) -> None:
        """Take in what was measured: bytes, and the share of the node's (or the limit's) memory in use."""
        with self.harmless():
            now = time.monotonic_ns()
            self._fed_ns = now
            if node_ratio is not None:
                self.node_ratio = node_ratio
            running, ended = self.running(), step if step != self._step else None
            if ended is not None:
                self._step = ended
                self.words[LiveWord.STEP], self.words[LiveWord.STEP_AT] = max(0, ended + 1), now
            self._remember(now, private, shared, device, running)
            # What was read is of its end.
            if ended is not None and (done := self._round.ended(ended, running, now)) is not None:
                self.rings.write(layout.ROUNDS, RecordKind.STEPS, now, *done)

    def record_event(self, line: str) -> None:
        """Take in a line about something that happened; the first 232 bytes are kept."""
        with self.harmless():
            self.rings.write_text(layout.TEXTS, RecordKind.EVENT, redacted(line))

    def ending(self, how: str) -> None:
        """Note how the process is about to end. The first word counts: who ends it may use ``os._exit``."""
        with self.harmless():
            if not self.words[LiveWord.ENDING]:
                self.words[LiveWord.ENDING] = time.monotonic_ns()
                self.rings.write_text(layout.TEXTS, RecordKind.END, redacted(how))

    def start(self, every_s: float = EVERY_S) -> None:
        """Sample once in ``every_s`` seconds, from a daemon thread, until ``close``."""
        if self._sampler is None:
            self._sampler = Sampler(self)
            self._sampler.start(every_s)

    def read_memory(self, now: int, method: int) -> None:
        """Record the memory of this process, unless somebody else does."""
        if now - self._fed_ns >= _FED_NS:
            found = resident(os.getpid())
            if found is not None:
                self._remember(now, found.private, found.shared, 0, method)

    def close(self) -> None:
        """Stop writing, and leave the recording behind."""
        if self._sampler is not None:
            self._sampler.stop()
        self.detach()

    def detach(self) -> None:
        """Write no more: calls that still run store into memory of nobody. Also for a forked child."""
        was_open = self.rings.open
        self.rings.detach()
        self.words = self.rings.words
        if was_open:
            with contextlib.suppress(ValueError):
                gc.callbacks.remove(self._on_gc)
            _recorders.discard(self)
            self._meeting = threading.RLock()  # a fork may have copied it held

    def _remember(self, now: int, private: int, shared: int, device: int, method: int) -> None:
        self._private = private
        self._round.see(private)
        numbers = self._step, private, shared, device, self.node_ratio, method
        self.rings.write(layout.NUMBERS, RecordKind.MEMORY, now, *numbers)

    def running(self) -> int:
        """Return the place of the method that began last of those that run, 0 for none."""
        words = self.words
        running = [at for at in self.methods() if words[at] > words[at + ENDED]]
        return max(running, key=lambda at: int(words[at + BEGUN_AT]), default=0)

    def methods(self) -> list[int]:
        """Return the places of the methods that were met."""
        return list(self._due_ns)

    def _on_gc(self, phase: str, info: dict[str, int]) -> None:
        if info["generation"] != _OLDEST:
            return
        now, words = time.monotonic_ns(), self.words
        if phase == "start":
            words[LiveWord.GC_SINCE] = now
            return
        since = words[LiveWord.GC_SINCE]
        words[LiveWord.GC_SINCE] = 0
        if since:
            self._collected[0] += now - since
            self._collected[1] += 1
            self._collected[2] += info.get("collected", 0)
            with self.harmless():
                self.write_collections(now, at_least_ns=_COLLECTION_NS)

    def write_collections(self, now: int, *, at_least_ns: int) -> None:
        """Write what was collected since the last time, if it took long enough."""
        spent, count, found = self._collected
        if spent >= at_least_ns:
            self._collected = [0, 0, 0]
            numbers = spent / _NS, count, min(found, (1 << 32) - 1)
            self.rings.write(layout.NUMBERS, RecordKind.COLLECTION, now, *numbers)

    def harmless(self) -> Harmless:
        """Return a context in which the recorder's own errors are counted and stay."""
        return Harmless(self)

    def went_wrong(self, error: Exception) -> None:
        """Count a failure; the first is told."""
        self.failures += 1
        if self._failed is not None and self.failures == 1:
            self._failed(error)


class Harmless:
    """The recorder's own errors stay here."""

    __slots__ = ("_recorder",)

    def __init__(self, recorder: FlightRecorder) -> None:
        self._recorder = recorder

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: object, error: BaseException | None, _tb: object) -> bool:
        if isinstance(error, Exception):
            self._recorder.went_wrong(error)
        return isinstance(error, Exception)


def _forked() -> None:
    for recorder in list(_recorders):
        recorder.detach()


os.register_at_fork(after_in_child=_forked)
