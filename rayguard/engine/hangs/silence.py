"""A closer look at a silent engine: what its processes spent, where they stand, and who is at fault.

Reads only, within a deadline, and only processes that carry our mark. Whether a silence is a hang is
``rayguard.engine.hangs.watchdog``'s verdict, who is at fault ``culprit``'s.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from rayguard.engine.hangs.culprit import Suspect, compiling, culprit, lines_about, standing_of
from rayguard.engine.hangs.watchdog import Hang, Limits, WatchdogVerdict
from rayguard.faults.fault import Role, Silence
from rayguard.harmless import harmless
from rayguard.process.identity import ProcessId, owner_mark
from rayguard.process.stacks import read_stacks
from rayguard.process.tree import descendants

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rayguard.engine.protocol import EngineProcess

EXAMINE_S = 1.2  # for reading all stacks; a hang is reported with or without them


class CpuAccount:
    """CPU seconds of an engine's processes and of what they start (compilers), added up over looks.

    Invariant: ``total_s`` only grows, whoever comes and goes.
    """

    def __init__(self, known: Sequence[EngineProcess]) -> None:
        self._known = tuple(known)
        self._last = {one.process: one.process.cpu_s() for one in known}
        self._spent = {one.process: 0.0 for one in known}  # since the silence began
        self._family = False  # whether helpers were counted at the last look
        self.total_s = 0.0

    def look(self, *, family: bool) -> tuple[str, ...]:
        """Count what was spent since the last look; return the states of the processes.

        ``family``: their helpers count too; one that runs, runs for the engine.
        """
        own = [one.process for one in self._known]
        helpers = [] if not family else sorted(set(_helpers(own)) - set(own), key=lambda p: p.pid)
        for process in (*own, *helpers):
            now_s = process.cpu_s()
            # A helper that we see for the first time may be an old one, unless all were counted last time.
            before_s = self._last.get(process, 0.0 if self._family else now_s)
            spent_s = max(0.0, now_s - before_s)
            self._last[process] = now_s
            self.total_s += spent_s
            if process in self._spent:
                self._spent[process] += spent_s
        self._family = family
        if not family:
            self._last = {process: self._last[process] for process in own}
        at_work = (state for state in (helper.state() for helper in helpers) if state in {"R", "D"})
        return (*(process.state() for process in own), *at_work)

    def begin(self) -> None:
        """Count anew for each process: it came back."""
        self._spent = dict.fromkeys(self._spent, 0.0)

    def suspects(self, silent_s: float) -> tuple[Suspect, ...]:
        """Return the processes with their share of a silence of ``silent_s``."""
        return tuple(
            Suspect(
                role=one.role,
                process=one.process,
                state=one.process.state(),
                cores=self._spent[one.process] / silent_s if silent_s > 0 else 0.0,
            )
            for one in self._known
        )


def _helpers(own: Sequence[ProcessId]) -> list[ProcessId]:
    return [child for process in own[:1] for child in descendants(process)]  # workers descend from the core


def examine(verdict: WatchdogVerdict, suspects: Sequence[Suspect], limits: Limits) -> Silence | None:
    """Return the silence with its evidence; without it where that cannot be had.

    None where a process compiles or loads: it will come back.
    """
    silence = Silence(
        role=Role.ENGINE_CORE,
        silent_s=verdict.silent_s,
        requests=verdict.requests,
        states=tuple((one.process.pid, one.state) for one in suspects),
        evidence=(str(verdict),),
    )
    with harmless("stacks"):
        # A frozen process is known as such by its state, also where its stack cannot be read.
        role, why = culprit(verdict.hang, suspects)
        silence = replace(silence, role=role, why=why)
        seen = _with_stacks(suspects)
        role, why = culprit(verdict.hang, seen)
        if verdict.hang is not Hang.STOPPED and verdict.silent_s < limits.busy_s and compiling(seen):
            return None
        return replace(silence, role=role, why=why, evidence=(*silence.evidence, *lines_about(seen)))
    return silence


def where_it_stands(suspects: Sequence[Suspect]) -> str:
    """Return where the process stands that keeps the others waiting, for a sentence's end; '' if unknown."""
    with harmless("stacks"):
        return standing_of(_with_stacks(suspects))
    return ""


def _with_stacks(suspects: Sequence[Suspect]) -> list[Suspect]:
    mark = owner_mark(ProcessId.me())
    stacks = read_stacks([one.process for one in suspects], mark=mark, deadline_s=EXAMINE_S)
    by_pid = {stack.pid: stack for stack in stacks}
    return [replace(one, stack=by_pid.get(one.process.pid)) for one in suspects]
