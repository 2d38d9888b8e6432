"""The heap of a process that has imported what it needs."""

import subprocess
import sys

PROGRAM = """
import atexit, gc
from rayguard.actors.memory import heap

def last():
    print(gc.get_freeze_count())

atexit.register(last)
if FROZEN:
    gc.freeze()
before = gc.get_freeze_count()
kept = [[] for _ in range(1_000)]
heap.freeze()
print(before, gc.get_freeze_count())
"""


def ran(*, frozen):
    """Return how many objects were frozen before, behind the call, and at the end."""
    program = PROGRAM.replace("FROZEN", str(frozen))
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    return tuple(map(int, done.stdout.split()))


def test_what_is_frozen_is_given_back_when_the_process_ends():
    """Else libraries say, at the exit of each actor, that it leaks what they have made."""
    before, behind, at_the_end = ran(frozen=False)
    assert (before, at_the_end) == (0, 0)
    assert behind > 1_000


def test_what_others_froze_stays_as_it_is():
    """As a worker that is forked with its imports done finds it: a collection at its end would copy it."""
    before, behind, at_the_end = ran(frozen=True)
    assert before == behind > 1_000
    assert at_the_end > before - 100, "a few of them may have died"
