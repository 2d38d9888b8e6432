"""What is known about an engine that failed: gathered from its processes, its records and the caller.

Reads only; the verdict is ``rayguard.faults.diagnose``.
"""

from __future__ import annotations

import dataclasses
import re
import threading
import time
from typing import TYPE_CHECKING

from rayguard.engine.records import EngineRecords, read_records
from rayguard.faults.fault import Fault, ProcessExit, Role, facts_of

if TYPE_CHECKING:
    from pathlib import Path

    from rayguard.engine.protocol import Engine
    from rayguard.faults.fault import Silence

# vllm/v1/executor/multiproc_executor.py: the core names the worker's exit code, which only it can wait for.
_LAST_WORDS_S = 0.5
_WORKER_EXIT = re.compile(r"died unexpectedly \(exit code: (-?[0-9]+)\)")


def gather(
    engine: Engine | None, error: BaseException | None, records: Path, since: float, silence: Silence | None
) -> Fault:
    """Return the facts about the failure of ``engine``, seen now. ``since``: wall clock of its start."""
    now = time.time()
    exits = () if engine is None else engine.exits()
    written = _read(records, since, wait=_only_the_core_can_tell(exits))
    return Fault(
        role=Role.ROLLOUT,
        operation="engine",
        exceptions=() if error is None else facts_of(error, role=Role.ROLLOUT, at=now),
        records=written.exceptions,
        exits=_with_exit_codes(exits, written.log),
        silence=silence,
        log=written.log,
        at=now,
    )


def _only_the_core_can_tell(exits: tuple[ProcessExit, ...]) -> bool:
    workers = [gone for gone in exits if gone.role is Role.ENGINE_WORKER and gone.exitcode is None]
    return bool(workers) and len(workers) == len(exits)


def _read(records: Path, since: float, *, wait: bool) -> EngineRecords:
    """Read what was written; with ``wait``, give a living core a moment to say how its worker ended.

    We hear of the worker's death as soon as the core does, and are about to end the core.
    """
    written = read_records(records, since)
    pause, until = threading.Event(), time.monotonic() + _LAST_WORDS_S
    while wait and not written.log and not written.exceptions and time.monotonic() < until:
        pause.wait(0.02)
        written = read_records(records, since)
    return written


def began_at(fault: Fault) -> float | None:
    """Return the wall-clock time of the root cause, where an engine process wrote it down."""
    return fault.records[0].at if fault.records and fault.records[0].at > 0 else None


def _with_exit_codes(exits: tuple[ProcessExit, ...], log: tuple[str, ...]) -> tuple[ProcessExit, ...]:
    codes = [int(found.group(1)) for line in log if (found := _WORKER_EXIT.search(line))]
    if not codes:
        return exits
    return tuple(
        dataclasses.replace(gone, exitcode=codes[0])
        if gone.role is Role.ENGINE_WORKER and gone.exitcode is None
        else gone
        for gone in exits
    )
