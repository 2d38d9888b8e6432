"""What a guarded call of a class that says nothing of its state costs, and what it loads: next to nothing."""

import subprocess
import sys
import time

import rayguard

MOST_PLAIN_CALLS = 40  # 2 us where a plain call takes 50 ns
TURNS, CALLS = 300, 100

UNSAID = """
import sys
import rayguard

@rayguard.guard
class Unsaid:
    def step(self, x):
        return x

    def fails(self):
        raise ConnectionError("refused")

actor = Unsaid()
assert [actor.step(n) for n in range(100)] == list(range(100))
try:
    actor.fails()
except ConnectionError:
    pass
print(*[name for name in sys.modules if name.endswith((".restorable", ".snapshot_file", ".state_bytes"))])
"""


class Plain:
    """The least that a method can do."""

    def step(self, x):
        return x


def turn(step):
    """Return the seconds of some calls."""
    began = time.perf_counter()
    for _ in range(CALLS):
        step(1)
    return time.perf_counter() - began


def test_a_guarded_call_costs_some_plain_calls():
    """Measured beside them, the best of many short turns, since noise only adds; ``bench_call`` says how long."""
    bare, guarded = Plain().step, rayguard.guard(type("Guarded", (), dict(vars(Plain))))().step
    turns = [(turn(bare), turn(guarded)) for _ in range(TURNS)]
    assert min(own for _, own in turns) <= MOST_PLAIN_CALLS * min(plain for plain, _ in turns)


def test_where_no_state_is_said_nothing_is_loaded_that_keeps_one():
    """In a fresh process, after calls that went well and one that did not."""
    run = subprocess.run(
        [sys.executable, "-c", UNSAID], capture_output=True, text=True, timeout=120, check=True
    )
    assert run.stdout.split() == []
