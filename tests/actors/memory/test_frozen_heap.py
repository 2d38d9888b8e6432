"""The heap of a process that has imported what it needs."""

import subprocess
import sys

PROGRAM = """
import atexit, gc
from rayguard.actors.memory import heap

def last():
    print(gc.get_freeze_count())

atexit.register(last)
before = gc.get_freeze_count()
heap.freeze()
print(before, gc.get_freeze_count() > 1_000)
"""


def test_what_is_frozen_is_given_back_when_the_process_ends():
    """Else libraries say, at the exit of each actor, that it leaks what they have made."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.split() == ["0", "True", "0"]
