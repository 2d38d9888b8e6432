"""Gathering what tells who ended a process: its recording, the kernel's counts and log, its last lines.

What Ray knows of it is ``rayguard.actors``'; the verdict is ``killer``. What cannot be read is left out.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING

from rayguard.private import closed_after, open_regular
from rayguard.process.cgroup import oom_kills
from rayguard.process.death_cause.killer import DeathEvidence
from rayguard.process.flight.readings import node_kills

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rayguard.process.flight.recording import Recording

_TAIL_BYTES = 64 << 10
_LOG_LINES = 200_000  # the kernel keeps far fewer
_BEFORE_S = 10.0
_OF_MEMORY = re.compile(r"Killed process \d+|oom-kill:|[Oo]ut of memory")


def gather(
    recording: Recording,
    *,
    died_at: float,
    exitcode: int | None = None,
    ray_kind: str = "",
    ray_said: str = "",
    root: Path = Path("/"),
) -> DeathEvidence:
    """Return the evidence on the death of the process that left ``recording``. Raises nothing.

    ``died_at`` (wall clock, seconds) is when it died, as far as anybody knows; ``root`` is where ``/proc``
    and ``/dev/kmsg`` lie. To be asked soon: what the kernel counts grows with the next death.
    """
    last = recording.memory[-1] if recording.memory else None
    group_kills = oom_kills(Path(recording.group)) if recording.group else None
    return DeathEvidence(
        pid=recording.process.pid,
        exitcode=recording.process.exitcode() if exitcode is None else exitcode,
        ray_kind=ray_kind,
        ray_said=ray_said,
        ending=recording.ending,
        stderr=tuple(last_lines(recording.stderr, 400)),
        kernel_log=tuple(_killed(root / "dev/kmsg", since_s=_since_s(recording))),
        group_kills=_more(recording.group_kills, group_kills),
        node_kills=_more(recording.node_kills, node_kills(root)),
        node_ratio=None if last is None else last.node_ratio,
        private_bytes=None if last is None else last.private,
        silent_s=max(0.0, died_at - recording.last_at),
    )


def last_lines(path: str, count: int) -> list[str]:
    """Return the last lines that are not empty of the file at ``path``; none where it cannot be read."""
    if not path:
        return []
    try:
        file = open_regular(Path(path))
        if file is None:
            return []
        with open(file, "rb") as stream:  # noqa: PTH123 - a descriptor, not a path
            stream.seek(max(0, os.fstat(file).st_size - _TAIL_BYTES))
            text = stream.read(_TAIL_BYTES).decode("utf-8", "replace")
    except OSError:
        return []
    return [line.rstrip() for line in text.splitlines() if line.strip()][-count:]


def _since_s(recording: Recording) -> float:
    """Return how far back the kernel's log may speak of this process: pids come again."""
    sign_of_life_s = time.time() - recording.last_at
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - recording.process.started_s
    return min(sign_of_life_s, age_s) + _BEFORE_S


def _more(before: int | None, now: int | None) -> int | None:
    return None if before is None or now is None else max(0, now - before)


def _killed(log: Path, *, since_s: float) -> Iterator[str]:
    """Yield what the kernel wrote of kills for memory in the last ``since_s`` seconds, if it may be read."""
    oldest_us = (time.monotonic() - since_s) * 1e6
    opened = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
    with contextlib.suppress(OSError, ValueError, IndexError), closed_after(os.open(log, opened)) as file:
        for line in _entries(file):
            facts, _, said = line.partition(";")
            if _OF_MEMORY.search(said) and int(facts.split(",")[2]) >= oldest_us:
                yield said


def _entries(file: int) -> Iterator[str]:
    for _ in range(_LOG_LINES):
        try:
            entry = os.read(file, 8192)
        except BrokenPipeError:  # it was overwritten while we read: go on with the next
            continue
        except OSError:  # EAGAIN: that was all
            return
        if not entry:
            return
        yield from (line for line in entry.decode("utf-8", "replace").splitlines() if line[:1].isdigit())
