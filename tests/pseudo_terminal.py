"""Runs the command as a person would: on a real pseudo-terminal."""

import os
import pty
import select
import subprocess
import sys
import time

DEADLINE_S = 60


def on_a_terminal(*arguments, columns, **environment):
    """Return the exit code of ``rayguard ARGUMENTS`` and all that it showed, colours included."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "rayguard", *map(str, arguments)],
        env={**os.environ, "COLUMNS": str(columns), "TERM": "xterm", **environment},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        close_fds=True,
    )
    os.close(theirs)
    shown, deadline = b"", time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline and select.select([ours], [], [], DEADLINE_S)[0]:
        try:
            chunk = os.read(ours, 65_536)
        except OSError:  # the other end is closed
            break
        if not chunk:
            break
        shown += chunk
    os.close(ours)
    return process.wait(DEADLINE_S), shown.decode()
