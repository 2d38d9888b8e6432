"""The processes of a vLLM engine: its cores, which vLLM's manager knows, and their workers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rayguard.engine.protocol import EngineProcess
from rayguard.faults.fault import ProcessExit, Role
from rayguard.process.identity import ProcessId
from rayguard.process.tree import descendants

if TYPE_CHECKING:
    from collections.abc import Iterable
    from multiprocessing.process import BaseProcess


def processes_of(cores: Iterable[BaseProcess]) -> tuple[EngineProcess, ...]:
    """Return the processes of an engine: its cores, each with its workers."""
    found: list[EngineProcess] = []
    for core in cores:
        process = ProcessId.of(core.pid or 0)
        if process is not None:
            found.append(EngineProcess(Role.ENGINE_CORE, process))
            found.extend(EngineProcess(Role.ENGINE_WORKER, child) for child in descendants(process))
    return tuple(found)


def exits_of(known: Iterable[EngineProcess], cores: Iterable[BaseProcess]) -> tuple[ProcessExit, ...]:
    """Return those of ``known`` that are gone, with the exit codes that their parents know."""
    codes = {core.pid: core.exitcode for core in cores}
    return tuple(
        ProcessExit(
            role=one.role, pid=one.process.pid, exitcode=codes.get(one.process.pid) or one.process.exitcode()
        )
        for one in known
        if not one.process.alive()
    )
