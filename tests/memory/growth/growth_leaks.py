"""Leaks, one a function: ``python growth_leaks.py NAME`` runs it under a finder and prints what is found.

Each makes an object with ``step()``, which leaks; those of LOOK_ALIKES do not, but look as if.
"""

import ctypes
import functools
import json
import mmap
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import shared_memory

from rayguard.memory.growth.finder import LeakFinder
from rayguard.memory.growth.growing import Courses
from rayguard.memory.probes.sample import Probes, Sources

MIB = 1 << 20
SIZE = 8 * MIB
CACHE = {}
LOCAL = threading.local()


class Trainer:
    """Keeps what it has seen."""

    def __init__(self):
        self.seen = []
        self.number = 0

    def step(self):
        self.number += 1
        self.update()

    def update(self):
        raise NotImplementedError


def filled(size):
    return bytearray(b"x") * size


class Bytearrays(Trainer):
    def update(self):
        self.seen.append(bytearray(b"x") * SIZE)  # line: bytearrays


class Small(Trainer):
    """Many small objects: Python's own allocator, no native memory."""

    def update(self):
        self.seen.extend([(str(k), k + 0.5) for k in range(8_000)])  # line: small


class InDict(Trainer):
    def update(self):
        CACHE[self.number] = filled(SIZE)


class Closure:
    def __init__(self):
        kept = []

        def step():
            kept.append(filled(SIZE))

        self.step = step


class Arrays(Trainer):
    def update(self):
        import numpy as np

        self.seen.append(np.ones(SIZE // 8))


class Tensors(Trainer):
    def update(self):
        import torch

        self.seen.append(torch.ones(SIZE // 4))


class Losses(Trainer):
    """The classic: a number is kept, and with it the graph that made it."""

    def update(self):
        import torch

        weight = torch.ones(SIZE // 4, requires_grad=True)
        self.seen.append((weight * 2).exp().sum())


class InThread(Trainer):
    def update(self):
        if not hasattr(LOCAL, "kept"):
            LOCAL.kept = []
        LOCAL.kept.append(filled(SIZE))


class InAnotherThread(InThread):
    """As the threads of a concurrency group keep it."""

    def __init__(self):
        super().__init__()
        self.pool = ThreadPoolExecutor(max_workers=1)

    def update(self):
        self.pool.submit(super().update).result(60)

    def close(self):
        self.pool.shutdown()


class InVariable:
    """A loop that keeps what it has seen in a variable."""

    def __init__(self):
        self.steps = self.loop()
        next(self.steps)

    def loop(self):
        kept = []
        while True:
            kept.append(filled(SIZE))
            yield len(kept)

    def step(self):
        next(self.steps)


class Fragments(Trainer):
    """Free memory between what is kept: nothing leaks, and the process grows all the same."""

    def __init__(self):
        super().__init__()
        self.libc = ctypes.CDLL(None)
        self.libc.malloc.restype = ctypes.c_void_p
        self.libc.realloc.restype = ctypes.c_void_p
        self.libc.realloc.argtypes = [ctypes.c_void_p, ctypes.c_size_t]

    def update(self):
        # Bigger than any hole that the steps before have left
        size = 4096 + 64 * self.number
        for block in [self.libc.malloc(size) for _ in range(SIZE // size)]:
            ctypes.memset(block, 1, size)
            self.libc.realloc(block, 32)  # stays where it is, and what is behind it is free


class Node:
    def __init__(self, before):
        self.before = before
        self.memory = filled(SIZE)


class Chain(Trainer):
    """No container grows: each object holds the one before."""

    newest = None

    def update(self):
        self.newest = Node(self.newest)


class Unbounded(Trainer):
    """A cache of functools without a bound."""

    @staticmethod
    @functools.cache
    def cached(number):
        return filled(SIZE)

    def update(self):
        self.cached(self.number)


class InC(Trainer):
    """Memory that only C code knows."""

    def update(self):
        libc = ctypes.CDLL(None)
        libc.malloc.restype = ctypes.c_void_p
        for _ in range(80):
            ctypes.memset(ctypes.c_void_p(libc.malloc(SIZE // 80)), 1, SIZE // 80)


class Mappings(Trainer):
    def update(self):
        mapped = mmap.mmap(-1, SIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        mapped.write(b"x" * SIZE)
        self.seen.append(mapped)


class Segments(Trainer):
    def update(self):
        segment = shared_memory.SharedMemory(create=True, size=SIZE)
        segment.buf[:] = b"x" * SIZE
        self.seen.append(segment)

    def close(self):
        for segment in self.seen:
            segment.close()
            segment.unlink()


class Lost(Segments):
    """Segments that are closed and not unlinked: only /dev/shm grows."""

    def update(self):
        super().update()
        self.seen[-1].close()
        self.seen[-1] = self.seen[-1].name

    def close(self):
        for name in self.seen:
            shared_memory.SharedMemory(name=name).unlink()


class Bounded(Trainer):
    """A cache that is full after a while."""

    @staticmethod
    @functools.lru_cache(maxsize=3)
    def cached(number):
        return filled(SIZE)

    def update(self):
        self.cached(self.number)


class Filling(Trainer):
    """A cache that is not full yet."""

    @staticmethod
    @functools.lru_cache(maxsize=100)
    def cached(number):
        return filled(SIZE)

    def update(self):
        self.cached(self.number)


class Replaced(Trainer):
    """A batch that is replaced by the next."""

    def update(self):
        self.seen = [filled(SIZE // 8) for _ in range(8)]


class Preallocated(Trainer):
    """A big buffer, filled bit by bit."""

    def __init__(self):
        super().__init__()
        self.buffer = bytearray(64 * SIZE)

    def update(self):
        at = (self.number * SIZE) % (6 * SIZE)
        self.buffer[at : at + SIZE] = filled(SIZE)


LEAKS = {
    kind.__name__: kind for kind in globals().values() if isinstance(kind, type) and hasattr(kind, "step")
}
LEAKS["Closure"] = Closure


def sources():
    """Look at this process and at /dev/shm only."""
    from rayguard.memory.probes.files import FilesProbe

    return Sources(shm=FilesProbe(["/dev/shm"]))


def run(name, steps):
    """Run ``name`` for ``steps`` and print what is found."""
    # The census takes a share of the time, and these steps take none
    leak, courses, finder, probes = LEAKS[name](), Courses(), LeakFinder(share=1e9), Probes(sources())
    findings, grew, hunted = [], set(), 0
    try:
        for step in range(steps):
            leak.step()
            courses.add(probes.sample(step))
            growing = courses.growing()
            grew |= {one.sentence(os.getpid()) for one in growing}
            wanted = next(
                (one for one in growing if one.pid == os.getpid() or one.quantity.value == "shm"), None
            )
            found = finder.step_ended(step, wanted)
            hunted += finder._hunt is not None
            if found is not None:
                findings.append(found)
                break
    finally:
        if hasattr(leak, "close"):
            leak.close()
        probes.close()
        finder.close()
    print(
        json.dumps(
            {
                "found": [[one.sentence, one.where, one.bytes_per_step, one.evidence] for one in findings],
                "grew": sorted(grew),
                "hunted": hunted,
            }
        )
    )


if __name__ == "__main__":
    run(sys.argv[1], int(sys.argv[2]))
