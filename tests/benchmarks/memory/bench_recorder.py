"""What the flight recorder costs: its thread, a call, a start, its memory. Run it as a script.

Prints JSON as its last line: ``watcher_core_ratio`` is CPU time of the sampling thread over wall time;
microseconds and milliseconds are CPU time too, the best of many turns (a busy machine only adds).
"""

import argparse
import gc
import itertools
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import timeit

from rayguard.process.flight import recorder
from rayguard.process.flight.sampler import Sampler

TURNS = 15
CALLS = 50_000
LIMIT_RATIO = 0.01
MEMORY = """
import os, sys
from rayguard.process.flight import recorder
page = os.sysconf("SC_PAGE_SIZE")
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * page
before = resident()
flight = recorder.start(sys.argv[1], every_s=3600.0)
flight.start()
for number in range(4096):
    flight.record_event("x" * 200)
    flight.record_memory(private=number, step=number)
    flight.end(flight.begin("A", f"m{number % 40}"))
print(resident() - before)
"""


def thread_cpu_s(thread):
    """Return the CPU seconds of ``thread`` so far."""
    return time.clock_gettime(time.pthread_getcpuclockid(thread.ident))


def core_ratio(home, seconds):
    """Return the share of a core that the thread takes, beside a caller that makes a thousand calls a second."""
    flight = recorder.start(home)
    (thread,) = [one for one in threading.enumerate() if one.name == "rayguard-recorder"]
    pause = threading.Event()
    pause.wait(0.5)
    cpu, wall = thread_cpu_s(thread), time.perf_counter()
    while time.perf_counter() - wall < seconds:
        for number in range(100):
            flight.end(flight.begin("Trainer", f"method{number % 10}"))
        pause.wait(0.1)
    ratio = (thread_cpu_s(thread) - cpu) / (time.perf_counter() - wall)
    recorder.stop()
    return ratio


def best_us(work, number=CALLS):
    """Return the CPU microseconds of one ``work``."""
    return min(timeit.repeat(work, number=number, repeat=TURNS, timer=time.thread_time)) / number * 1e6


def costs(home):
    """Return the microseconds of a call and of what can be told."""
    flight = recorder.start(home, every_s=3600.0)
    sampler, steps = Sampler(flight), itertools.count()

    def call():
        recorder.end(recorder.begin("Trainer", "update"))

    found = {
        "call_us": best_us(call),
        "memory_us": best_us(lambda: recorder.record_memory(private=1, step=1), 5000),
        "step_us": best_us(lambda: recorder.record_memory(private=1, step=next(steps)), 5000),
        "event_us": best_us(lambda: recorder.record_event("engine 0 rebuilt"), 5000),
        "sample_us": best_us(sampler.sample, 200),
    }
    recorder.stop()
    found["call_off_us"] = best_us(call)
    return found


def start_ms(home):
    """Return the CPU milliseconds of a start, without those of its thread."""
    found = []
    for turn in range(TURNS):  # each in a home of its own: no file of an earlier turn is replaced
        began = time.thread_time()
        recorder.start(f"{home}/{turn}", every_s=3600.0)
        found.append(time.thread_time() - began)
        recorder.stop()
        gc.collect()
    return min(found) * 1e3


def memory_bytes(home):
    """Return what a process has resident after a start and four times around the rings, imports left out."""
    run = subprocess.run(
        [sys.executable, "-c", MEMORY, home], capture_output=True, text=True, timeout=60, check=True
    )
    return int(run.stdout)


def main():
    """Measure it all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        result = {
            "watcher_core_ratio": core_ratio(home, options.seconds),
            **costs(home),
            "start_ms": start_ms(home),
            "memory_mb": memory_bytes(home) / 1e6,
            "load": os.getloadavg()[0],
        }
    print(json.dumps({name: round(value, 5) for name, value in result.items()}))
    assert result["watcher_core_ratio"] <= LIMIT_RATIO


if __name__ == "__main__":
    main()
