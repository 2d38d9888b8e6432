"""A home that cannot be written costs a user one line of log, and no call."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = """
import errno, logging, os, sys, threading
logging.basicConfig(format="LOG %(message)s", stream=sys.stderr)
if sys.argv[1] == "full":
    from rayguard import private
    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    private.open_private = private.replace_file = full
import rayguard
from rayguard.actors.life import incarnation, publishing
from rayguard.actors.token_logs import keep_tokens
from rayguard.metrics.node import numbers_file

@rayguard.guard
class Works:
    def fail(self, number):
        raise ValueError(f"number {number}")

works, life = Works(), incarnation.Incarnation()
publishing.show(life, "Works")
publishing.record(life, "Works")
publishing.show_numbers(life, "Works")
for number in range(12):
    try:
        works.fail(number)
    except ValueError:
        pass
keep_tokens(type("Engine", (), {"inflight": object()})(), "", go_on=False)
publishing._page.publish_now()
publishing._numbers.publish_now()
publishing.reap()
threading.Event().wait(1.5)  # rounds of the threads
"""


@pytest.mark.parametrize("how", ["full", "missing"])
def test_a_home_that_cannot_be_written_is_one_line(how, tmp_path):
    """Journal, page, numbers, recorder and token log write there, each again and again."""
    home = str(tmp_path) if how == "full" else "/proc/no-home"
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM, how],
        env={**os.environ, "RAYGUARD_HOME": home},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    lines = [line for line in run.stderr.splitlines() if line.strip()]
    assert len(lines) == 1, run.stderr
    assert home in lines[0]
