"""How a rank strikes itself, at a place in its step. Each strikes once: what is made again is left alone."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from dataclasses import dataclass

import torch
import torch.distributed as dist

from tests.benchmarks.trials_gang.marks import mark
from tests.benchmarks.trials_gang.plan import Kind

LATE_S = 0.8  # so long the others stand in a collective before the last one comes
INSIDE_S = 0.4
_FOREVER_S = 100_000
_WRITING_S = 0.004  # what is killed in a snapshot is killed so much later at most


class StrikeError(ValueError):
    """An ordinary error, of the trainer's own."""


@dataclass(frozen=True, slots=True)
class Strike:
    """A fault that ranks carry out themselves; the same on all of them, ``here`` is whose copy this is."""

    kind: Kind
    ranks: tuple[int, ...]
    moment: float
    folder: str
    here: int = -1

    @property
    def mine(self) -> bool:
        """Say whether this rank is struck."""
        return self.here == self.ranks[0]

    def __call__(self, place: str) -> bool:
        """Strike, if this is the place for it; True: leave the step out."""
        kind = self.kind
        if kind is Kind.STOP_INSIDE and place == "meeting":
            self._stop_inside()
        elif kind is Kind.SKIPPED and place == "meeting":
            return self.mine and mark(self.folder, self.name)
        elif self.mine and place == self._place and mark(self.folder, self.name):
            self._act(kind)
        return False

    @property
    def _place(self) -> str:
        if self.kind is Kind.DEADLOCK:  # before the last collective, or after all of them
            return "meeting" if self.moment < 0.5 else "end"
        return _PLACE_OF.get(self.kind, "")

    @property
    def name(self) -> str:
        """What the mark of this rank's strike is called."""
        return f"fired-{self.here}"

    def _act(self, kind: Kind) -> None:
        if kind is Kind.RAISE:
            raise StrikeError("an error of the trainer's own")
        if kind is Kind.STOP_OUTSIDE:
            os.kill(os.getpid(), signal.SIGSTOP)
        elif kind is Kind.GIL:
            ctypes.PyDLL(None).sleep(_FOREVER_S)
        elif kind is Kind.LOOP:
            while True:
                pass
        elif kind is Kind.DEADLOCK:
            lock = threading.Lock()
            with lock:
                lock.acquire()
        elif kind is Kind.ODD:
            self._another_collective()

    def _another_collective(self) -> None:
        if self.moment < 0.5:
            dist.barrier()
        else:
            dist.broadcast(torch.zeros(()), (self.here + 1) % dist.get_world_size())

    def _stop_inside(self) -> None:
        """Let another rank come late, and stop this one while it waits for it."""
        if self.mine and mark(self.folder, f"began-{self.here}"):
            threading.Thread(target=self._stop_soon, args=(threading.get_ident(),), daemon=True).start()
        elif self.here == (self.ranks[0] + 1) % dist.get_world_size() and mark(self.folder, "late"):
            threading.Event().wait(LATE_S)

    def _stop_soon(self, main: int) -> None:
        threading.Event().wait(INSIDE_S)
        frame = sys._current_frames().get(main)
        while frame is not None and not frame.f_code.co_filename.endswith("distributed_c10d.py"):
            frame = frame.f_back
        mark(self.folder, self.name if frame is not None else "outside")
        os.kill(os.getpid(), signal.SIGSTOP)


_PLACE_OF = {
    Kind.RAISE: "start",
    Kind.STOP_OUTSIDE: "start",
    Kind.GIL: "start",
    Kind.LOOP: "start",
    Kind.ODD: "meeting",
}


def die_writing(strike: Strike) -> None:
    """End this process as it writes its snapshot: before the first byte, or soon after."""
    if not mark(strike.folder, strike.name):
        return
    if strike.moment < 0.3:
        os.kill(os.getpid(), signal.SIGKILL)
    threading.Timer(strike.moment * _WRITING_S, os.kill, (os.getpid(), signal.SIGKILL)).start()
