"""A process that writes a token log until it is killed, and what it has written after each operation.

Run as ``python token_writer.py LOG PROGRESS LIMIT_BYTES SEED``; ``PROGRESS`` holds the number of operations
that have returned, as 8 bytes in shared memory.
"""

from __future__ import annotations

import mmap
import os
import random
import sys
from array import array
from itertools import islice
from pathlib import Path

from rayguard.engine.generated import Generated
from rayguard.engine.tokens.log import TokenLog

IDS = [f"request-{n}" for n in range(6)]
OPERATIONS = 1_200  # written in 0.15 s


def some(rng, width):
    """Return a few generated tokens."""
    count = rng.randrange(1, 12)
    return Generated(
        tokens=array("i", (rng.randrange(1 << 31) for _ in range(count))),
        width=width,
        ids=array("i", (rng.randrange(1 << 31) for _ in range(count * width))),
        logprobs=array("f", (-rng.random() for _ in range(count * width))),
        ranks=array("i", range(count)) if width else array("i"),
        versions=((f"v{rng.randrange(3)}", 0),),
    )


def operations(seed):
    """Yield operations for ever; each of them is one frame, so that a reader finds it whole or not at all."""
    rng = random.Random(seed)
    live = {}
    while True:
        name = rng.choice(IDS)
        if name not in live:
            live[name] = rng.randrange(3)
            yield "begin", name, f"asked-{rng.randrange(1 << 30)}"
        elif rng.random() < 0.2:
            gone = [name, *rng.sample(sorted(live), rng.randrange(2))]
            for one in gone:
                live.pop(one, None)
            yield "end", gone
        else:
            yield "append", [(one, some(rng, width)) for one, width in live.items()]


def apply(state, operation):
    """Return the state after ``operation``: what was asked and generated, by id. ``state`` stays as it is."""
    match operation:
        case "begin", name, asked:
            return {**state, name: (asked, Generated())}
        case "append", entries:
            after = dict(state)
            for name, more in entries:
                if name in after and more.tokens:
                    after[name] = after[name][0], after[name][1].plus(more)
            return after
        case "end", names:
            return {name: value for name, value in state.items() if name not in names}
    raise AssertionError(operation)


def states(seed, start, stop):
    """Return the states after ``start`` to ``stop`` operations."""
    state, found = {}, []
    for done, operation in enumerate(islice(operations(seed), stop + 1)):
        if done >= start:
            found.append(state)
        state = apply(state, operation)
    return found


def write(log, operation):
    """Let ``log`` carry out ``operation``."""
    getattr(log, operation[0])(*operation[1:])


def counter(path):
    """Return the number in ``path``, shared between processes; each store is whole."""
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    os.ftruncate(file, 8)
    shared = memoryview(mmap.mmap(file, 8)).cast("Q")
    os.close(file)
    return shared


def main(log, progress, limit_bytes, seed):
    """Write until killed; the operations are made first, so that the loop does nothing but write."""
    done = counter(progress)
    written = list(islice(operations(int(seed)), OPERATIONS))
    log = TokenLog(Path(log), limit_bytes=int(limit_bytes))
    for number, operation in enumerate(written, 1):
        write(log, operation)
        done[0] = number
    assert (log.refused, log.cut) == (0, 0)
    sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
