"""What is known about an engine that failed: gathered from its processes, its records and the caller.

Reads only; the verdict is ``rayguard.faults.diagnose``.
"""

from __future__ import annotations

import dataclasses
import re
import threading
import time
from typing import TYPE_CHECKING

from rayguard.engine.error_records import EngineRecords, read_records
from rayguard.faults.fault import Fault, ProcessExit, Role, Silence, facts_of

if TYPE_CHECKING:
    from pathlib import Path

    from rayguard.engine.protocol import Engine

# vllm/v1/executor/multiproc_executor.py: the core names the worker's exit code, which only it can wait for.
_LAST_WORDS_S = 1.0  # spent only while somebody ended and nobody has said how
_WORKER_EXIT = re.compile(r"died unexpectedly \(exit code: (-?[0-9]+|None)\)")


def gather(
    engine: Engine | None, error: BaseException | None, records: Path, since: float, silence: Silence | None
) -> Fault:
    """Return the facts about the failure of ``engine``, seen now. ``since``: wall clock of its start."""
    now = time.time()
    exits, written = _last_words(engine, records, since)
    return Fault(
        role=Role.ROLLOUT,
        operation="engine",
        exceptions=() if error is None else facts_of(error, role=Role.ROLLOUT, at=now),
        records=written.exceptions,
        exits=exits,
        silence=silence,
        log=written.log,
        at=now,
    )


def _last_words(
    engine: Engine | None, records: Path, since: float
) -> tuple[tuple[ProcessExit, ...], EngineRecords]:
    """Return who ended, how, and what was written, giving them a moment to say it.

    A death is seen before its exit code can be read: a core's comes through the prefork server, a worker's
    is told by the core, which hears of it when we do and which we are about to end.
    """
    pause, began = threading.Event(), time.monotonic()
    while True:
        written = read_records(records, since)
        exits = _with_exit_codes(() if engine is None else engine.exits(), written.log)
        complete = not exits or _all_said(exits, written.log)
        if complete or time.monotonic() - began >= _LAST_WORDS_S:
            return exits, written
        pause.wait(0.02)


def _all_said(exits: tuple[ProcessExit, ...], log: tuple[str, ...]) -> bool:
    """Say whether there is nothing more to wait for: an exit code, or the core's word that it has none.

    The code is "None" where vLLM asks between the worker's closing of its files and its becoming a zombie. A
    worker ends when its core was killed, and its code may be there first: that of the core says who began.
    """
    cores = [ended for ended in exits if ended.role is Role.ENGINE_CORE]
    return any(ended.exitcode is not None for ended in cores or exits) or bool(_worker_exits(log))


def _worker_exits(log: tuple[str, ...]) -> list[str]:
    return [found.group(1) for line in log if (found := _WORKER_EXIT.search(line))]


def began_at(fault: Fault) -> float | None:
    """Return the wall-clock time of the root cause: an engine process wrote it down, or fell silent then."""
    if fault.silence is not None and fault.at > 0:
        return fault.at - fault.silence.silent_s
    return fault.records[0].at if fault.records and fault.records[0].at > 0 else None


def _with_exit_codes(exits: tuple[ProcessExit, ...], log: tuple[str, ...]) -> tuple[ProcessExit, ...]:
    codes = [int(code) for code in _worker_exits(log) if code != "None"]
    if not codes:
        return exits
    return tuple(
        dataclasses.replace(ended, exitcode=codes[0])
        if ended.role is Role.ENGINE_WORKER and ended.exitcode is None
        else ended
        for ended in exits
    )
