"""Noticing that an engine failed when nobody asks it: its processes die, or it falls silent.

Deaths come by push (pidfd); silence is looked for twice a second, and only while requests wait. The verdict
on silence is ``rayguard.process.watchdog``'s; what is done about either is the supervisor's.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
from typing import TYPE_CHECKING

from rayguard.faults.fault import Role, Silence
from rayguard.process.deaths import DeathWatch
from rayguard.process.watchdog import Observation, Watchdog
from rayguard.recovery.tally import TALLY

if TYPE_CHECKING:
    from collections.abc import Callable

    from rayguard.engine.protocol import Engine
    from rayguard.process.identity import ProcessId
    from rayguard.recovery.policy import GuardPolicy
    from rayguard.recovery.tally import EngineTally

    OnFailure = Callable[[Engine, Silence | None], None]

_log = logging.getLogger("rayguard")
_INTERVAL_S = 0.5


class EngineWatch:
    """Watches one engine at a time; ``on_failure`` is called from a thread of its own."""

    def __init__(self, policy: GuardPolicy, on_failure: OnFailure, tally: EngineTally) -> None:
        self._policy = policy
        self._tally = tally
        self._on_failure = on_failure
        self._deaths = DeathWatch()
        self._engine: Engine | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def watch(self, engine: Engine | None) -> None:
        """Watch ``engine`` from now on and forget the one before; None: watch nothing."""
        if self._engine is not None:
            for known in self._engine.processes():
                self._deaths.unwatch(known.process)
        self._engine = engine
        if engine is None:
            return
        for known in engine.processes():
            self._deaths.watch(known.process, functools.partial(self._died, engine))
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="rayguard-engine-watch", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Watch nothing any more."""
        self._stop.set()
        self.watch(None)
        self._deaths.close()

    def _died(self, engine: Engine, gone: ProcessId) -> None:
        gone.exitcode()  # now: a moment later its parent has asked, and nobody else can
        self._on_failure(engine, None)

    def _run(self) -> None:
        watched: Engine | None = None
        watchdog = self._new_watchdog()
        while not self._stop.wait(_INTERVAL_S):
            if self._engine is not watched:
                watched, watchdog = self._engine, self._new_watchdog()
            if watched is None or not watched.processes():
                continue
            try:
                self._look(watched, watchdog)
            except Exception:  # noqa: BLE001 - where the watcher runs: a broken look must not end the watch
                _log.exception("rayguard: looking at the engine failed")
                TALLY.guard_error("watch")

    def _look(self, engine: Engine, watchdog: Watchdog) -> None:
        progress = engine.progress()
        self._tally.requests_running = len(progress.running)
        self._tally.tokens_generated = progress.tokens
        processes = [known.process for known in engine.processes()]
        verdict = watchdog.see(
            Observation(
                at_s=time.monotonic(),
                progress=progress.turns,
                running=len(progress.running),
                cpu_s=sum(process.cpu_s() for process in processes) if progress.running else 0.0,
                states=tuple(process.state() for process in processes) if progress.running else (),
            )
        )
        if verdict is None:
            return
        silence = Silence(
            role=Role.ENGINE_CORE,
            silent_s=verdict.silent_s,
            requests=verdict.requests,
            states=tuple((p.pid, state) for p, state in zip(processes, verdict.states, strict=False)),
        )
        self._on_failure(engine, silence)

    def _new_watchdog(self) -> Watchdog:
        policy = self._policy
        return Watchdog(policy.hang_stopped_s, policy.hang_idle_s, policy.hang_busy_s, _INTERVAL_S)
