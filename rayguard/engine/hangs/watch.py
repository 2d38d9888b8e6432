"""Noticing that an engine failed when nobody asks it: its processes die, or it falls silent.

Deaths come by push (pidfd); silence is looked for twice a second, and only while requests wait. The verdict
on silence is ``rayguard.engine.hangs.watchdog``'s, the evidence for it is gathered in ``silence``; what is
done about either is the supervisor's.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
from typing import TYPE_CHECKING

from rayguard.engine.hangs.blocked_loop import BlockedLoop
from rayguard.engine.hangs.phase import phase_of, signs
from rayguard.engine.hangs.silence import CpuAccount, examine, where_it_stands
from rayguard.engine.hangs.unanswered_calls import UnansweredCalls
from rayguard.engine.hangs.watchdog import Limits, Observation, Watchdog
from rayguard.engine.protocol import Engine, Progress
from rayguard.harmless import harmless
from rayguard.process.deaths import DeathWatch

if TYPE_CHECKING:
    from collections.abc import Callable

    from rayguard.engine.context import Surroundings
    from rayguard.faults.fault import Silence
    from rayguard.process.identity import ProcessId
    from rayguard.recovery.policy import GuardPolicy
    from rayguard.recovery.tally import EngineTally

    OnFailure = Callable[[Engine, Silence | None], None]

_log = logging.getLogger("rayguard")
_INTERVAL_S = 0.5
_FORGOTTEN_S = 60.0
_SUSPICIOUS = 0.25  # of the idle limit: from then on helpers of the engine's processes are looked at too


class EngineWatch:
    """Watches one engine at a time; ``on_failure`` is called from a thread of its own.

    ``around`` is told of a blocked event loop, which is no failure of the engine.
    """

    def __init__(
        self,
        policy: GuardPolicy,
        on_failure: OnFailure,
        tally: EngineTally,
        *,
        around: Surroundings | None = None,
    ) -> None:
        self._policy = policy
        self._tally = tally
        self._on_failure = on_failure
        self._around = around
        self._deaths = DeathWatch()
        self._engine: Engine | None = None
        self._looking: _Look | None = None  # the watch thread's own
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

    def _died(self, engine: Engine, process: ProcessId) -> None:
        process.exitcode()  # now: a moment later its parent has asked, and nobody else can
        self._on_failure(engine, None)

    def _run(self) -> None:
        while not self._stop.wait(_INTERVAL_S):
            with harmless("watch"):  # a broken look must not end the watch
                engine = self._engine
                if engine is None or not engine.processes():
                    self._looking = None
                    continue
                looking = self._looking
                if looking is None or looking.engine is not engine:
                    looking = self._looking = _Look(engine, self._policy, self._around)
                silence = looking.look()
                self._tally.standing = looking.standing()
                looking.tell_unanswered()
                self._tally.requests_running = len(looking.before.running)
                self._tally.tokens_generated = looking.before.tokens
                if silence is not None and self._engine is engine:
                    self._on_failure(engine, silence)


class _Look:
    """Looks at one life of one engine, again and again."""

    def __init__(self, engine: Engine, policy: GuardPolicy, around: Surroundings | None) -> None:
        self.engine = engine
        self.before = Progress()
        self._limits = _limits(engine, policy)
        self._watchdog = Watchdog(self._limits)
        self._cpu = CpuAccount(engine.processes())
        self._blocked = BlockedLoop(policy.hang_idle_s, around)
        self._calls = UnansweredCalls()
        self._told = 0.0  # of which stop by its owner
        self._signs = 0
        self._most = 0  # prompt tokens computed between two looks

    def standing(self) -> str:
        """Return what the engine does for its owner; requests that wait for one that he stopped are told.

        No hang: that lasts for as long as it pleases. But he may have forgotten it.
        """
        found, waiting = self.engine.standing(), len(self.before.running)
        stopped_s = time.monotonic() - found.since
        if found.call and waiting and found.since != self._told and stopped_s >= _FORGOTTEN_S:
            self._told = found.since
            _log.warning(
                "rayguard: %d requests wait for an engine that is %s since %s was called, %.0f s ago: "
                "resume_generation() or wake_up() lets it go on",
                waiting,
                found.state,
                found.call,
                stopped_s,
            )
        return found.state

    def tell_unanswered(self) -> None:
        """Tell calls that wait for longer than is usual, with the line where the engine stands."""
        for name, waited_s in self._calls.due(self.before.inside, time.monotonic()):
            _log.warning(
                "rayguard: the call %s to the engine has not been answered for %.0f s%s",
                name,
                waited_s,
                where_it_stands(self._cpu.suspects(self._silent_s())),
            )

    def look(self) -> Silence | None:
        """Take one look; return what is known of a silence that is a hang."""
        progress, before = self.engine.closely(), self.before
        self.before = progress
        self._most = max(self._most, progress.computed - before.computed)
        waiting = len(progress.running) + progress.asked
        self._signs += signs(progress, before)
        reads = not waiting or self._blocked.reads(self.engine.loop, waiting)
        suspicious = self._silent_s() >= _SUSPICIOUS * self._limits.idle_s
        states = self._cpu.look(family=suspicious) if waiting else ()
        seen = Observation(
            at_s=time.monotonic(),
            progress=self._signs,
            running=waiting,
            cpu_s=self._cpu.total_s,
            states=states,
            phase=phase_of(progress, before=before, most=self._most, owner_reads=reads),
        )
        verdict = self._watchdog.see(seen)
        state = self._watchdog.state
        if state is not None and state.since is seen:
            self._cpu.begin()
        if verdict is None:
            return None
        silence = examine(verdict, self._cpu.suspects(verdict.silent_s), self._limits)
        now = self.engine.closely()
        if signs(now, progress) > 0 or (now.unread and not progress.unread):
            return None  # it came back while we looked closer
        if silence is None:
            self._watchdog.excuse()
        else:
            self._watchdog.start_again()
        return silence

    def _silent_s(self) -> float:
        state = self._watchdog.state
        return 0.0 if state is None else state.newest.at_s - state.since.at_s


def _limits(engine: Engine, policy: GuardPolicy) -> Limits:
    return Limits(
        stopped_s=policy.hang_stopped_s,
        idle_s=policy.hang_idle_s,
        busy_s=policy.hang_busy_s,
        interval_s=_INTERVAL_S,
        whole_prompts=engine.facts().get("enable_chunked_prefill") is False,
    )
