"""A zygote whose children write a flight recording at full speed and are killed at random instants.

Run as ``python recorder_fury.py DIRECTORY CHILDREN SEED``; prints one JSON object a child.
"""

import json
import mmap
import os
import random
import signal
import struct
import sys
import time
from itertools import pairwise
from pathlib import Path

from rayguard.process.flight import layout
from rayguard.process.flight.reader import read_recording
from rayguard.process.flight.writer import FlightRecorder

READY_S = 20


def write_for_ever(home, done):
    """Write numbered records of each kind; ``done`` says how many are certainly there."""
    recorder = FlightRecorder(home, title="fury")
    words = memoryview(done).cast("Q")
    number = 0
    while True:
        call = recorder.begin("Fury", "update")
        recorder.record_event(f"event {number} " + "x" * (number % 200))
        recorder.record_memory(private=number, shared=number, device=number, node_ratio=0.5, step=number)
        recorder.end(call)
        number += 1
        words[0] = number


def killed_child(home, rng):
    """Start a child, kill it somewhere, and return what its recording says of itself."""
    done = mmap.mmap(-1, 8)
    pid = os.fork()
    if pid == 0:
        try:
            write_for_ever(home, done)
        finally:
            os._exit(9)
    deadline = time.monotonic() + READY_S
    while struct.unpack("Q", done[:])[0] == 0 and time.monotonic() < deadline:
        os.sched_yield()
    until = time.monotonic() + rng.uniform(
        0.0, 0.03
    )  # records take 10 us: thousands, around the ring and more
    while time.monotonic() < until:
        os.sched_yield()
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    (path,) = (Path(home) / "flight").glob(f"flight-*-{pid}-*.ring")
    answer = judged(path, struct.unpack("Q", done[:])[0])
    path.unlink()
    return answer


def judged(path, done):
    recording = read_recording(path)
    data = path.read_bytes()
    texts = layout.read_ring(data, layout.TEXTS)
    events = [int(one.line.split()[1]) for one in recording.events]
    whole = all(
        one.line == f"event {at} " + "x" * (at % 200)
        for at, one in zip(events, recording.events, strict=True)
    )
    memory = [one.private for one in recording.memory]
    same = all(one.private == one.shared == one.device for one in recording.memory)
    (method,) = recording.methods
    return {
        "done": done,
        "newest_event": events[-1] if events else -1,
        "newest_memory": memory[-1] if memory else -1,
        "events": len(events),
        "gaps": sum(b - a != 1 for a, b in pairwise(events)),
        "memory_gaps": sum(b - a != 1 for a, b in pairwise(memory)),
        "whole": whole and same,
        "texts": len(texts),
        "begun": method.begun,
        "ended": method.ended,
    }


def main():
    home, children, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    rng = random.Random(seed)
    for _ in range(children):
        print(json.dumps(killed_child(home, rng)))


if __name__ == "__main__":
    main()
