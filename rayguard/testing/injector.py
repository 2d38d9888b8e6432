"""Faults on purpose, by schedule and not by chance: what is to happen at which step, and proof that it did.

Covers the plan, the signals and the record. Does NOT know how to find an engine's processes (ask
``engine_status()``), and carries out only what a signal can do: faults that are shaped by a request or raised
inside an engine (``rayguard.testing.scheduler``) are brought about by their owner, who then reports
them with ``record``.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

import psutil

from rayguard.errors import ConfigError, RecoveryTimeoutError

if TYPE_CHECKING:
    from collections.abc import Iterable

EFFECT_DEADLINE_S = 5.0
_GONE = (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)


class What(str, Enum):
    """A way to break something."""

    KILL_ACTOR = "kill_actor"
    KILL_CORE = "kill_core"
    KILL_WORKER = "kill_worker"
    STOP_CORE = "stop_core"
    SCHEDULER_ASSERTION = "scheduler_assertion"
    SEEDED_PARTIAL_PREFILL = "seeded_partial_prefill"


SIGNALS = {
    What.KILL_ACTOR: signal.SIGKILL,
    What.KILL_CORE: signal.SIGKILL,
    What.KILL_WORKER: signal.SIGKILL,
    What.STOP_CORE: signal.SIGSTOP,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedFault:
    """``what`` happens to ``target`` at ``step``, once it has generated ``after_tokens`` tokens in it."""

    step: int
    target: int
    what: What
    after_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FiredFault:
    """A planned fault that happened: ``at`` in wall-clock seconds, ``pid`` of the process it hit."""

    planned: PlannedFault
    at: float
    pid: int


class FaultInjector:
    """Carries out a plan of faults, each exactly once.

    Invariant: a planned fault is in ``fired`` at most once.
    """

    def __init__(self, plan: Iterable[PlannedFault] = ()) -> None:
        self.plan: tuple[PlannedFault, ...] = tuple(plan)
        self.fired: list[FiredFault] = []
        if len(set(self.plan)) != len(self.plan):
            raise ConfigError(f"the same fault is planned twice in {self.plan}: give each its own step")

    def kill(
        self, *, actor: int, call: int, what: What = What.KILL_ACTOR, after_tokens: int = 0
    ) -> FaultInjector:
        """Return an injector that also kills ``actor`` (or a part of it) during its call number ``call``."""
        return self._and(PlannedFault(step=call, target=actor, what=what, after_tokens=after_tokens))

    def freeze(self, *, actor: int, call: int, after_tokens: int = 0) -> FaultInjector:
        """Return an injector that also stops the engine core of ``actor`` during its call number ``call``."""
        return self._and(
            PlannedFault(step=call, target=actor, what=What.STOP_CORE, after_tokens=after_tokens)
        )

    def _and(self, fault: PlannedFault) -> FaultInjector:
        more = FaultInjector((*self.plan, fault))
        more.fired = list(self.fired)
        return more

    def due(self, step: int) -> tuple[PlannedFault, ...]:
        """Return what is planned for ``step`` and has not happened."""
        return tuple(fault for fault in self.missing() if fault.step == step)

    def strike(self, fault: PlannedFault, victim: psutil.Process) -> FiredFault:
        """Send the fault's signal to ``victim`` and return once it took effect.

        ``victim`` was looked up before: psutil remembers its start time and refuses a pid that has gone to
        another process since.
        """
        if fault.what not in SIGNALS:
            raise ConfigError(f"{fault.what.value} is not done by a signal: bring it about, then record() it")
        if victim.pid in (os.getpid(), 1):
            raise ConfigError(f"refusing to send {SIGNALS[fault.what].name} to process {victim.pid}")
        at = time.time()
        victim.send_signal(SIGNALS[fault.what])
        _await_effect(victim, SIGNALS[fault.what])
        return self.record(fault, at=at, pid=victim.pid)

    def record(self, fault: PlannedFault, *, at: float, pid: int) -> FiredFault:
        """Note that ``fault`` happened; twice is an error, and so is what nobody planned."""
        if fault not in self.plan:
            raise ConfigError(f"{fault} was never planned")
        if any(fired.planned == fault for fired in self.fired):
            raise ConfigError(f"{fault} has already happened: each fault fires once")
        fired = FiredFault(planned=fault, at=at, pid=pid)
        self.fired.append(fired)
        return fired

    def missing(self) -> tuple[PlannedFault, ...]:
        """Return what was planned and has not happened."""
        done = {fired.planned for fired in self.fired}
        return tuple(fault for fault in self.plan if fault not in done)

    def assert_all_fired(self) -> None:
        """Raise AssertionError that names what never happened."""
        missing = self.missing()
        if missing:
            named = ", ".join(
                f"{fault.what.value} of {fault.target} at step {fault.step}" for fault in missing
            )
            raise AssertionError(f"{len(missing)} of {len(self.plan)} planned faults never fired: {named}")


def _await_effect(victim: psutil.Process, sent: signal.Signals) -> None:
    never = threading.Event()
    deadline = time.monotonic() + EFFECT_DEADLINE_S
    while not _took_effect(victim, sent):
        if time.monotonic() > deadline:
            raise RecoveryTimeoutError(
                f"{sent.name} was sent to process {victim.pid} {EFFECT_DEADLINE_S:.0f} s ago and it is still "
                f"{victim.status()}: is it blocked in the kernel?"
            )
        never.wait(0.002)


def _took_effect(victim: psutil.Process, sent: signal.Signals) -> bool:
    try:
        status = victim.status() if victim.is_running() else psutil.STATUS_DEAD
    except psutil.NoSuchProcess:
        status = psutil.STATUS_DEAD
    # A stopped process may already have been killed by whoever noticed: that is an effect too.
    return status in _GONE or (sent is signal.SIGSTOP and status == psutil.STATUS_STOPPED)
