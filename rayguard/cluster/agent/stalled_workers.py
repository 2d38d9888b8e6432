"""Ray workers that live and stand still, as the node's agent finds them: told of, and never ended.

What counts as standing still is ``stall_verdict``; what the calls of a guarded process are is its flight
recording. An incident is closed when the process goes on, or has ended.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rayguard.actors.life import incidents
from rayguard.cluster.agent import stall_verdict
from rayguard.cluster.agent.stall_verdict import Method, RunningCalls
from rayguard.config import Settings
from rayguard.faults.diagnosis import Kind, Scope
from rayguard.faults.fault import Fault, Role, Silence
from rayguard.harmless import harmless
from rayguard.private import read_regular
from rayguard.process import owned_files, stacks
from rayguard.process.flight import layout
from rayguard.recovery.incident import Incident, Outcome
from rayguard.recovery.remedy import Action

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from rayguard.cluster.agent.journal_feed import KnownIncidents
    from rayguard.cluster.agent.worker_table import Worker
    from rayguard.process.identity import ProcessId
    from rayguard.process.stacks import CodePlace

STOPPED, SILENT = "agent.stopped", "agent.silent"
_STACKS_S = 3.0
_ASK_AGAIN_S = 60.0  # for a stack, which costs a process more than a look
_FRAMES = 12
_NS = 1e9
_GOES_ON = {
    STOPPED: "let it go on with `kill -CONT`, or end it: Ray starts an actor again that may be restarted",
    SILENT: "read its stack; end its process where it does not come back: Ray starts it again if it may",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """A worker that stands still, and what that is called."""

    signature: str
    silent_s: float
    why: str
    stack: Sequence[CodePlace]  # innermost first
    kind: Kind = Kind.ENGINE_HANG
    scope: Scope = Scope.PROCESS


class StalledWorkers:
    """Who of the node's workers stands still."""

    def __init__(
        self, home: Path, node_id: str, known: KnownIncidents, actor_with: Callable[[int, str], str]
    ) -> None:
        self._home, self._node_id, self._known = home, node_id, known
        self._actor_with = actor_with  # of a pid and a job
        self._stopped: dict[ProcessId, float] = {}  # monotonic, when first seen so
        self._calls: dict[ProcessId, RunningCalls] = {}
        self._open: dict[tuple[ProcessId, str], Incident] = {}
        self._ask_again: dict[ProcessId, float] = {}
        self._looked_at = 0.0
        self._silent_s = Settings().agent_silent_s

    def adopt(self, workers: dict[ProcessId, Worker]) -> None:
        """Take over what an earlier life of the agent had found, and close what is over since."""
        by_pid = {process.pid: process for process in workers}
        for one in self._known.signed("agent."):
            if one.node != self._node_id or one.outcome is not Outcome.OPEN:
                continue
            process = by_pid.get(one.pid)
            if process is None:
                incidents.record(incidents.closed(one, Outcome.FAILED))
            else:
                self._open[process, one.signature] = one
                self._stopped.setdefault(process, 0.0)

    def look(self, workers: dict[ProcessId, Worker], every_s: float) -> None:
        """Look at all workers; ``every_s`` says how long ago the last look should have been."""
        now = time.monotonic()
        since_s = now - self._looked_at if self._looked_at else 0.0
        pause_s = since_s if since_s > stall_verdict.PAUSED * every_s else 0.0
        self._looked_at = now
        self._close_the_dead(workers)
        for worker in workers.values():
            self._look_stopped(worker, now)
            if worker.marked and worker.state != "T":
                self._look_silent(worker, now, pause_s)
        self._stopped = {process: at for process, at in self._stopped.items() if process in workers}
        self._calls = {process: calls for process, calls in self._calls.items() if process in workers}
        self._ask_again = {process: at for process, at in self._ask_again.items() if process in workers}

    def _look_stopped(self, worker: Worker, now: float) -> None:
        process = worker.process
        if worker.state != "T":  # 't' is a debugger's
            if self._stopped.pop(process, None) is not None:
                self._over(process, STOPPED, Outcome.RECOVERED)
            return
        since = self._stopped.setdefault(process, now)
        if (
            stall_verdict.stands(since, now)
            and (process, STOPPED) not in self._open
            and not self._known_to_others(worker)
        ):
            why = f"its process {process.pid} is stopped (SIGSTOP)"
            seen = stacks.look(process, deadline_s=_STACKS_S)
            stack = stall_verdict.of_the_call(seen.threads) or next((one.places for one in seen.threads), ())
            self._tell(worker, _Found(signature=STOPPED, silent_s=now - since, why=why, stack=stack))

    def _look_silent(self, worker: Worker, now: float, pause_s: float) -> None:
        process = worker.process
        first = process not in self._calls  # by this life of the agent: nothing to compare with
        before = self._calls.get(process, RunningCalls(moved_at=now))
        if pause_s:
            before = before.paused(pause_s)
        calls = self._calls[process] = before.after(_methods(self._home, process), worker.cpu_s, now)
        if (process, SILENT) in self._open:
            if calls.moved_at == now and not first:
                self._over(process, SILENT, Outcome.RECOVERED)
            return
        found = calls.silent(now, self._silent_s)
        if found is None or now < self._ask_again.get(process, now) or self._known_to_others(worker):
            return
        call = stall_verdict.of_the_call(stacks.look(process, deadline_s=_STACKS_S).threads)
        if not call or stall_verdict.waits_for_others(call):
            self._ask_again[process] = now + _ASK_AGAIN_S
            return  # what it waits for is not known, or is another process: no hang that can be proved
        name, silent_s = found
        stalled = _Found(
            signature=SILENT,
            silent_s=silent_s,
            why=f"`{name}` is silent, far beyond its own pace",
            stack=call,
        )
        if stall_verdict.in_a_collective(call):
            why = f"{stalled.why}, in a collective: a rank of its group has not come"
            stalled = replace(stalled, why=why, kind=Kind.NCCL_TIMEOUT, scope=Scope.GROUP)
        self._tell(worker, stalled)

    def _known_to_others(self, worker: Worker) -> bool:
        """Say whether the actor's pool or supervisor has told of it already."""
        self._known.refresh()
        return any(
            one.outcome is Outcome.OPEN and one.kind == Kind.ENGINE_HANG.value
            for one in self._known.of(worker.process.pid)
        )

    def _tell(self, worker: Worker, found: _Found) -> None:
        pid = worker.process.pid
        silence = Silence(
            role=Role.ACTOR,
            silent_s=found.silent_s,
            requests=0 if worker.idle else 1,
            states=((pid, worker.state),),
            why=found.why,
            evidence=tuple(str(place) for place in found.stack[:_FRAMES]),
        )
        fault = Fault(role=Role.ACTOR, operation=worker.title, silence=silence, at=time.time())
        diagnosis = replace(
            incidents.diagnosed(fault),
            signature=found.signature,
            kind=found.kind,
            scope=found.scope,
            cause=f"{worker.target} stands still: {found.why}, for {found.silent_s:.0f} s",
            confidence=0.99 if found.signature == STOPPED else 0.7,
            evidence=(f"Ray shows it as `ray::{worker.title}`", *silence.evidence),
            advice=_GOES_ON[found.signature],
        )
        incident = replace(
            Incident.of(fault, diagnosis),
            target=worker.target,
            actor_id=worker.actor_id or self._actor_of(worker),
            job_id=worker.job_id,
            node=self._node_id,
            pid=pid,
            remedy=Action.NONE.value,
            detect_s=found.silent_s,
        )
        incidents.record(incident)
        self._open[worker.process, found.signature] = incident

    def _actor_of(self, worker: Worker) -> str:
        with harmless("agent_still"):  # the incident comes first
            return self._actor_with(worker.process.pid, worker.job_id)
        return ""

    def _over(self, process: ProcessId, signature: str, outcome: Outcome) -> None:
        incident = self._open.pop((process, signature), None)
        if incident is not None:
            incidents.record(incidents.closed(incident, outcome, served=outcome is Outcome.RECOVERED))

    def _close_the_dead(self, workers: dict[ProcessId, Worker]) -> None:
        for process, signature in [key for key in self._open if key[0] not in workers]:
            self._over(process, signature, Outcome.FAILED)


def _methods(home: Path, process: ProcessId) -> list[Method]:
    """Return the methods of a process as its flight recording has them now; none without one. 0.2 ms."""
    data = b""
    with contextlib.suppress(OSError):
        path = owned_files.path_of(home / "flight", layout.KIND, layout.ENDING, process)
        data = read_regular(path, layout.LABELS.end)
    if len(data) < layout.LABELS.end:
        return []
    words, names = layout.read_words(data), layout.names(layout.read_ring(data, layout.LABELS))
    return [_method(name, words[at:]) for at, name in names.items()]


def _method(name: str, words: Sequence[int]) -> Method:
    longest = words[layout.LONGEST]
    return Method(
        name=name,
        begun=words[layout.BEGUN],
        ended=words[layout.ENDED],
        begun_at=words[layout.BEGUN_AT] / _NS,
        ended_at=words[layout.ENDED_AT] / _NS,
        longest_s=None if longest == layout.UNTOLD else longest / _NS,
    )
