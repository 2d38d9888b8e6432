"""A thousand starts and ends of the process that forks engines, in all ways: what is left of them?

    python -m tests.benchmarks.runs.bench_hosts [rounds]

In each round an owner starts one (with a small module in vLLM's place) and, unless it is killed before that is ready, has
it fork a process in an engine's place, which ends with it (a real core sees to its own end: ``tests/engine/adoption``). The
ways take turns: its owner stops it; is killed and nobody comes, so that its time runs out; is killed before it is ready; is
killed and an heir takes it over, which stops it; and the heir is killed too, as it takes over or just after. Alone on a
machine: guarded actors elsewhere on it tidy up after dead owners, and would hide what is left.

Last line JSON: what is left of processes, folders with sockets, shared memory and this process's descriptors, and how many
heirs took one over (of those that were not killed as they did). Ends with 1 where anything is left, or an heir got none.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import time
from itertools import cycle, islice
from pathlib import Path

import psutil
from rich.console import Console
from rich.progress import track

from rayguard.engine.prefork.server import PreforkServer
from rayguard.process.identity import ProcessId

MODULES = ("tabnanny",)
KEEP_S = 3.0
READY_S = 60.0
ENDS_S = 30.0  # for the last ones
WAYS = ("stopped", "expires", "killed early", "inherited", "heir killed", "heir killed early")
_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of linux/prctl.h
_fork = multiprocessing.get_context("fork")


def engine() -> None:
    """Live until the process that forked it ends."""
    ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
    signal.pause()


def owner(way: str, told: multiprocessing.connection.Connection) -> None:
    """Start a server; tell its process, address and what it forked; then stop it, or wait for the signal."""
    server = PreforkServer(MODULES, keep_s=KEEP_S)
    server.start()
    forked = 0
    if way != "killed early":
        assert server.ready(READY_S)
        process = server.context().Process(target=engine)
        process.start()
        forked = process.pid
    told.send((server.pid, server._lives[-1].address, forked))
    if way != "stopped":
        signal.pause()
    server.stop()
    os._exit(0)


def heir(way: str, address: str, told: multiprocessing.connection.Connection) -> None:
    """Take the server over; then stop it, or wait for the signal."""
    if way == "heir killed early":
        told.send(False)
    server = PreforkServer(MODULES, keep_s=KEEP_S)
    taken = server.inherit(address)
    told.send(taken)
    if way != "inherited":
        signal.pause()
    server.stop()
    os._exit(0)


class Rounds:
    """What was started, and how."""

    def __init__(self) -> None:
        self.seen: list[ProcessId] = []
        self.folders: list[Path] = []
        self.inherited = 0

    def one(self, way: str) -> None:
        """Start one and have it end, or be about to."""
        first, ours = self._started(owner, way)
        pid, address, forked = ours.recv()
        ours.close()
        self.seen += [found for number in (pid, forked) if number and (found := ProcessId.of(number))]
        self.folders.append(Path(address).parent)
        if way != "stopped":
            first.kill()
        first.join(READY_S)
        first.close()
        if way in {"inherited", "heir killed", "heir killed early"}:
            second, its = self._started(heir, way, address)
            self.inherited += bool(its.recv())
            its.close()
            if way != "inherited":
                second.kill()
            second.join(READY_S)
            second.close()

    def _started(self, run, *arguments):
        mine, its = _fork.Pipe(duplex=False)
        process = _fork.Process(target=run, args=(*arguments, its))
        process.start()
        its.close()
        return process, mine

    def left(self) -> dict[str, int]:
        """Count what lives, once the last ones had their time."""
        until = time.monotonic() + ENDS_S
        while time.monotonic() < until and any(one.alive() for one in self.seen):
            threading.Event().wait(0.1)
        return {
            "processes": sum(one.alive() for one in self.seen),
            "folders": sum(folder.exists() for folder in self.folders),
        }


def held(rounds: int, *, beside: bool) -> dict[str, int]:
    """Hold so many rounds; return what is left of them, and how many there were of each."""
    everyone = Rounds()
    shared, descriptors = set(Path("/dev/shm").iterdir()), psutil.Process().num_fds()
    for way in track(tuple(islice(cycle(WAYS), rounds)), "Hosts", console=Console(stderr=True)):
        everyone.one(way)
    told = everyone.left()
    if not beside:
        told["segments"] = len(set(Path("/dev/shm").iterdir()) - shared)
    told["descriptors"] = max(0, psutil.Process().num_fds() - descriptors)
    told["children"] = len(psutil.Process().children(recursive=True))
    return {"rounds": rounds, "inherited": everyone.inherited, **told}


def main(rounds: int, *, beside: bool) -> int:
    with tempfile.TemporaryDirectory(prefix="hosts-") as home:
        os.environ["RAYGUARD_HOME"] = home
        began = time.monotonic()
        told = held(rounds, beside=beside)
    print(json.dumps({**told, "seconds": round(time.monotonic() - began)}))
    got = sum(way in {"inherited", "heir killed"} for way in islice(cycle(WAYS), rounds))
    left = {name: count for name, count in told.items() if name not in {"rounds", "inherited"}}
    return int(any(left.values()) or told["inherited"] != got)


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    options.add_argument(
        "rounds", nargs="?", type=int, default=1000, help="in turns of six ways (default: 1000)"
    )
    options.add_argument(
        "--beside", action="store_true", help="others use the machine too: its shared memory is not counted"
    )
    chosen = options.parse_args()
    sys.exit(main(chosen.rounds, beside=chosen.beside))
