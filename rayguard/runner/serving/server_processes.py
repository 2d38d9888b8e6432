"""The processes of a server, and its connections: read from the machine, nothing is decided here."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import psutil

from rayguard.process.tree import descendants
from rayguard.runner.serving.engine_loss import LivingProcess, ProcessEnd

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from rayguard.process.identity import ProcessId

_PREFIX = "VLLM_PROCESS_NAME_PREFIX"
_USUAL_PREFIX = "VLLM"
_ENGINES = ("EngineCore", "Worker")


class ServerProcesses:
    """The command ``leader`` and what descends from it. ``environment``: what its words set for it."""

    def __init__(self, leader: ProcessId, environment: Mapping[str, str]) -> None:
        self._leader = leader
        prefix = environment.get(_PREFIX) or os.environ.get(_PREFIX) or _USUAL_PREFIX
        self._titles = tuple(f"{prefix}::{name}" for name in _ENGINES)

    def living(self) -> dict[ProcessId, LivingProcess]:
        """Return those that live, a stopped one too, a zombie not."""
        if not self._leader.alive():
            return {}
        found = {self._leader: LivingProcess(None)}
        by_pid = {self._leader.pid: self._leader}
        for process in descendants(self._leader):  # parents first
            try:
                shown = psutil.Process(process.pid)
                parent, words = shown.ppid(), shown.cmdline()
            except psutil.Error:
                continue
            if process.alive():
                by_pid[process.pid] = process
                title = words[0] if words and words[0].startswith(self._titles) else ""
                found[process] = LivingProcess(by_pid.get(parent), title)
        return found

    def connections(self, port: int) -> tuple[bool, bool]:
        """Return whether one of them listens on ``port``, and whether any client is connected to it."""
        listens = connected = False
        for process in (self._leader, *descendants(self._leader)):
            try:
                open_now = psutil.Process(process.pid).net_connections(kind="tcp")
            except (psutil.Error, OSError):
                continue
            for one in open_now:
                if one.laddr and one.laddr.port == port:
                    listens = listens or one.status == psutil.CONN_LISTEN
                    connected = connected or one.status == psutil.CONN_ESTABLISHED
        return listens, connected


def ends_of(processes: Iterable[ProcessId]) -> dict[ProcessId, ProcessEnd]:
    """Return how those ended that live no more, as far as it is known."""
    return {
        one: ProcessEnd(one.exitcode(), unnoticed=one.state() == "Z") for one in processes if not one.alive()
    }
