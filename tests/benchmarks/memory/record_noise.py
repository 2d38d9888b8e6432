"""Record real memory curves of small Python workers, for the noise and some of the traces of ``traces.py``.

Each worker is a process of its own that works in steps of about 0.15 s, a tenth of that busy, and notes its
resident memory in KB after every step; ``node`` notes what the whole machine uses. About two minutes a round.
``python -m tests.benchmarks.memory.record_noise [--points 320] OUT.json``
"""

from __future__ import annotations

import argparse
import gc
import json
import mmap
import multiprocessing
import os
import random
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path

STEP_S = 0.15
AT_ONCE = 4


class Node:
    """A row of a graph that points back at itself: only the cyclic collector frees it."""

    def __init__(self, size: int) -> None:
        self.payload, self.me = bytearray(size), self


def arrays(rng: random.Random) -> Iterator[None]:
    """Batches of arrays of random lengths, the last few kept."""
    import numpy as np

    kept: list[object] = []
    while True:
        kept = [*kept[-3:], np.full(int(rng.lognormvariate(12.5, 0.7)), 1.0)]
        yield


def objects(rng: random.Random) -> Iterator[None]:
    """Small objects made and dropped, some of them in cycles."""
    rows: dict[int, object] = {}
    while True:
        for _ in range(1500):
            rows[rng.randrange(20_000)] = {
                "a": [rng.random()] * rng.randrange(30),
                "b": Node(rng.randrange(400)),
            }
        yield


def files(rng: random.Random) -> Iterator[None]:
    """Lines read and parsed from a file, and pages touched through a mapping."""
    with tempfile.NamedTemporaryFile("w+", suffix=".jsonl") as file:
        for row in range(60_000):
            file.write(json.dumps({"row": row, "text": "x" * rng.randrange(300)}) + "\n")
        file.flush()
        while True:
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
                start = rng.randrange(len(mapped) // 2)
                lines = mapped[start : start + rng.randrange(3_000_000)].split(b"\n")[1:-1]
            read = [json.loads(line) for line in lines]
            yield
            del read


def fragments(rng: random.Random) -> Iterator[None]:
    """Buffers of all sizes, freed in any order: the heap fills with holes, then with no more of them."""
    held: list[bytearray] = []
    while True:
        held.extend(bytearray(int(rng.lognormvariate(9, 2))) for _ in range(200))
        rng.shuffle(held)
        del held[2000:]
        yield


def lazy_garbage(rng: random.Random) -> Iterator[None]:
    """Cycles that the collector is told to leave alone for some dozens of steps: a sawtooth."""
    gc.set_threshold(9000, 50, 50)
    while True:
        for _ in range(60):
            Node(rng.randrange(20_000))
        if rng.random() < 0.03:
            gc.collect()
        yield


def full_cache(rng: random.Random) -> Iterator[None]:
    """A cache of bounded size that fills: fast at first, then ever slower, then not at all."""
    cached = lru_cache(maxsize=4000)(lambda key: bytes(8_000 + key % 9_000))
    while True:
        for _ in range(100):
            cached(int(rng.expovariate(1 / 2500)))
        yield


def leak_rows(rng: random.Random) -> Iterator[None]:
    """Rows appended and never read again, under other work."""
    other, kept = objects(rng), []
    while True:
        kept.append([rng.random() for _ in range(rng.randrange(9_000))])
        next(other)
        yield


def leak_views(rng: random.Random) -> Iterator[None]:
    """A view of a few numbers keeps its whole array."""
    import numpy as np

    other, kept = arrays(rng), []
    while True:
        kept.append(np.full(rng.randrange(80_000), 1.0)[:3])
        next(other)
        yield


def leak_cycles(rng: random.Random) -> Iterator[None]:
    """Cycles, and a collector that was switched off."""
    gc.disable()
    while True:
        for _ in range(30):
            Node(rng.randrange(20_000))
        yield


def leak_buffers(rng: random.Random) -> Iterator[None]:
    """Buffers kept now and then, among many that come and go."""
    other, kept = fragments(rng), []
    while True:
        if rng.random() < 0.3:
            kept.append(bytearray(rng.randrange(2_000_000)))
        next(other)
        yield


def leak_big_cache(rng: random.Random) -> Iterator[None]:
    """A cache keyed by something that never comes twice."""
    cache: dict[tuple[int, float], bytes] = {}
    work = files(rng)
    while True:
        for row in range(40):
            cache[row, rng.random()] = bytes(rng.randrange(12_000))
        next(work)
        yield


WORKERS: dict[str, Callable[[random.Random], Iterator[None]]] = {
    work.__name__: work
    for work in (
        *(arrays, objects, files, fragments, lazy_garbage, full_cache),
        *(leak_rows, leak_views, leak_cycles, leak_buffers, leak_big_cache),
    )
}


def resident_kb() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") // 1024


def node_kb() -> int:
    rows = dict(line.split(":") for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines())
    return int(rows["MemTotal"].split()[0]) - int(rows["MemAvailable"].split()[0])


def curve(name: str, points: int) -> list[int]:
    """Return the memory after each of ``points`` steps, in KB."""
    os.nice(10)
    rest, work = threading.Event(), WORKERS[name](random.Random(name)) if name != "node" else None
    read = node_kb if work is None else resident_kb
    curve = []
    for _ in range(points):
        if work is not None:
            next(work)
        curve.append(read())
        rest.wait(STEP_S if work is not None else 4 * STEP_S)
    return curve


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--points", type=int, default=320)
    options.add_argument("out", type=Path)
    chosen = options.parse_args()
    spawn = multiprocessing.get_context("spawn")
    with spawn.Pool(AT_ONCE, maxtasksperchild=1) as pool:
        runs = {name: pool.apply_async(curve, (name, chosen.points)) for name in ("node", *WORKERS)}
        curves = {name: run.get(timeout=900) for name, run in runs.items()}
    rows = ",\n".join(f' "{name}": {json.dumps(kb, separators=(",", ":"))}' for name, kb in curves.items())
    chosen.out.write_text("{\n" + rows + "\n}\n", encoding="ascii")
    return 0


if __name__ == "__main__":
    sys.exit(main())
