"""A witness inside an engine's core: how many tokens each request really had, and since when.

Who writes it is ``tests.benchmarks.trials.scheduler``, a few bytes for each request and step, into a mapped file:
what was written is there whatever becomes of the process. One file for each core, in one folder. Knows
nothing of recovery; what was lost is for the reader to say.
"""

from __future__ import annotations

import mmap
import os
import struct
import threading
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from rayguard.process.identity import ProcessId
from rayguard.testing import fuse as fuses

if TYPE_CHECKING:
    from pathlib import Path

    from typing_extensions import Self

CONFIG_KEY = "rayguard_witness"
SLOTS = 4096  # the newest requests of one core
_HEADER = struct.Struct("<Q")  # requests so far
_FAILED = struct.Struct("<Q")  # monotonic ns of the scheduler's own failure, 0 before it
_FIRST = _HEADER.size + _FAILED.size
TIMED = 512  # tokens of a request whose times are kept
_SLOT = struct.Struct("<96sQII")  # id, when it came (monotonic ns), tokens then, tokens now
_NOW = struct.Struct("<I")
_NOW_AT = _SLOT.size - _NOW.size
_TIMES = struct.Struct(f"<{TIMED}I")  # of its tokens, in microseconds since it came, 0: none; after all slots
_TIME = struct.Struct("<I")
_TIMES_AT = _FIRST + SLOTS * _SLOT.size
_LOOK_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenRequest:
    """One request on one core. Tokens are those of the whole sequence, prompt included."""

    id: str
    at_ns: int  # monotonic, when it came
    start: int  # tokens it came with
    now: int


class WitnessWriter:
    """Writes the file of the calling process into ``folder``.

    Invariant: the header counts a slot only once it is filled.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        me = ProcessId.me()
        path = folder / name_of(me)
        with path.open("wb") as file:
            file.truncate(_TIMES_AT + SLOTS * _TIMES.size)
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)
        self._count = 0
        self._at: dict[str, tuple[int, int, int]] = {}  # slot, when it came (ns), tokens then

    def begin(self, request_id: str, tokens: int) -> None:
        """A request comes in with so many tokens."""
        slot, at_ns = self._count % SLOTS, time.monotonic_ns()
        if self._count >= SLOTS:  # an earlier request's
            _TIMES.pack_into(self._map, _TIMES_AT + slot * _TIMES.size, *[0] * TIMED)
        offset = _FIRST + slot * _SLOT.size
        _SLOT.pack_into(self._map, offset, request_id.encode()[:96], at_ns, tokens, tokens)
        self._at[request_id] = slot, at_ns, tokens
        self._count += 1
        _HEADER.pack_into(self._map, 0, self._count)

    def see(self, request_id: str, tokens: int) -> None:
        """It has so many tokens now."""
        found = self._at.get(request_id)
        if found is None:
            return
        slot, at_ns, start = found
        if 0 < (made := tokens - start) <= TIMED:
            offset = _TIMES_AT + slot * _TIMES.size + (made - 1) * _TIME.size
            _TIME.pack_into(self._map, offset, max(1, (time.monotonic_ns() - at_ns) // 1000))
        _NOW.pack_into(self._map, _FIRST + slot * _SLOT.size + _NOW_AT, tokens)

    def end(self, request_id: str) -> None:
        """Nothing more comes of it; its count stays."""
        self._at.pop(request_id, None)

    def fail(self) -> None:
        """The scheduler fails now."""
        _FAILED.pack_into(self._map, _HEADER.size, time.monotonic_ns())


class CoreWitness:
    """Reads the file of one core, alive or dead."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    @property
    def count(self) -> int:
        """How many requests the core has had."""
        return int(_HEADER.unpack_from(self._map)[0])

    @property
    def failed_at(self) -> float | None:
        """When its scheduler failed, in monotonic seconds; None: not of itself."""
        at_ns = _FAILED.unpack_from(self._map, _HEADER.size)[0]
        return at_ns / 1e9 if at_ns else None

    def read(self, since: int = 0) -> list[SeenRequest]:
        """Return the requests from number ``since`` on, oldest first, as far as they are still there."""
        count = self.count
        return [self._slot(number) for number in range(max(since, count - SLOTS), count)]

    def as_of(self, at_ns: int, until_ns: int, since: int = 0) -> list[SeenRequest]:
        """Return the requests that came until ``until_ns`` as they were at ``at_ns`` (both monotonic)."""
        count = self.count
        numbers = range(max(since, count - SLOTS), count)
        found = [(number, self._slot(number)) for number in numbers]
        return [
            replace(one, now=one.start + self._made_by(number, one, at_ns))
            for number, one in found
            if one.at_ns <= until_ns
        ]

    def _made_by(self, number: int, one: SeenRequest, at_ns: int) -> int:
        times = _TIMES.unpack_from(self._map, _TIMES_AT + number % SLOTS * _TIMES.size)
        made = (n + 1 for n in reversed(range(min(TIMED, one.now - one.start))))
        # Of several tokens of one step only the last one has a time.
        return next((n for n in made if times[n - 1] and one.at_ns + times[n - 1] * 1000 <= at_ns), 0)

    def _slot(self, number: int) -> SeenRequest:
        name, at_ns, start, now = _SLOT.unpack_from(self._map, _FIRST + number % SLOTS * _SLOT.size)
        return SeenRequest(id=name.rstrip(b"\0").decode(errors="replace"), at_ns=at_ns, start=start, now=now)


class Crowd:
    """Counts the cores that live, while the block runs: each needs a device of its own."""

    def __init__(self, folder: Path, devices: int) -> None:
        self._folder, self._devices = folder, devices
        self._over = threading.Event()
        self._dead: set[Path] = set()
        self._thread = threading.Thread(target=self._watch, name="crowd", daemon=True)
        self.too_many: list[str] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(_LOOK_S):
            cores = self._living()
            # Looked at twice: one may have begun since another was found alive.
            if len(cores) > self._devices and len(again := self._living()) > self._devices:
                self.too_many = self.too_many or [f"{self._devices} devices, and cores {sorted(again)}"]

    def _living(self) -> set[int]:
        paths = set(self._folder.glob("*.witness")) - self._dead
        self._dead |= {path for path in paths if core_of(path).state() in {"", "Z", "X", "x"}}
        return {core_of(path).pid for path in paths - self._dead}


def name_of(core: ProcessId) -> str:
    """Return the name of the file of a core's process."""
    return f"{core.pid}-{core.started}.witness"


def core_of(path: Path) -> ProcessId:
    """Return whose file ``path`` is."""
    pid, _, started = path.stem.partition("-")
    return ProcessId(int(pid), int(started))


def witnessed(folder: Path, fuse: Path) -> dict[str, Any]:
    """Return the vLLM arguments of an engine whose scheduler has a fuse, and a witness in ``folder``."""
    return {
        "scheduler_cls": "tests.benchmarks.trials.scheduler.WitnessedScheduler",
        "additional_config": {fuses.CONFIG_KEY: os.fspath(fuse), CONFIG_KEY: os.fspath(folder)},
    }
