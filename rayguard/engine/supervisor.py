"""Keeps one engine slot alive: failures come in, at most one recovery at a time goes out.

An *epoch* is one life of the engine. Whoever saw epoch n fail joins the recovery to n + 1 and never starts
a second one; a report about an older life is answered by the recovery that replaced it. What a recovery
does is ``rayguard.engine.recovery``.
"""

from __future__ import annotations

import logging
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from rayguard.engine.standby import NO_STANDBY
from rayguard.errors import ConfigError, GaveUpError
from rayguard.faults.diagnosis import Kind, Scope
from rayguard.faults.fault import Role
from rayguard.recovery.harmless import harmless
from rayguard.recovery.machine import take_back
from rayguard.recovery.tally import TALLY

if TYPE_CHECKING:
    from collections.abc import Callable

    from rayguard.engine.lives import Lives
    from rayguard.engine.protocol import Engine
    from rayguard.engine.recovery import Recovery
    from rayguard.engine.surroundings import Surroundings
    from rayguard.engine.weights.current import Doubt, Proof
    from rayguard.faults.fault import Silence
    from rayguard.process.identity import ProcessId
    from rayguard.recovery.policy import GuardPolicy

_log = logging.getLogger("rayguard")
_POISONED = frozenset({Kind.CUDA_DEVICE_ASSERT, Kind.CUDA_ILLEGAL_ACCESS})


class EngineSupervisor:
    """One engine slot. All methods may be called from any thread."""

    def __init__(
        self, lives: Lives, recovery: Recovery, policy: GuardPolicy, surroundings: Surroundings
    ) -> None:
        self._lives = lives
        self._recovery = recovery
        self._policy = policy
        self._around = surroundings
        self._lock = threading.Lock()
        self._healing: Future[None] | None = None  # of the recovery under way, or of the last one
        self.final: BaseException | None = None  # set once: there will be no next engine

    # -- for those who use the engine

    @property
    def is_async(self) -> bool:
        """Whether the engine belongs to an event loop."""
        return self._lives.is_async

    @property
    def serving(self) -> bool:
        """Whether requests are answered now."""
        return self.final is None and self._healing is not None and self._healing.done()

    @property
    def ready(self) -> Engine | None:
        """The engine, where it serves right now and has the current weights."""
        return self._lives.engine if self.serving and not self.weights_pending else None

    @property
    def weights_pending(self) -> bool:
        """Whether the serving engine still lacks the current weights."""
        return self._lives.weights.pending

    @property
    def patience_s(self) -> float:
        """How long anybody waits for a recovery."""
        return self._policy.patience_s

    def start(self) -> None:
        """Build the first engine. What the recipe raises comes out, unless another try can help."""
        healed = self._healing = Future()
        self._run(healed, self._recovery.first, None)
        healed.result(self.patience_s)

    def engine(self, timeout_s: float) -> Engine:
        """Return the engine that serves, waiting for a recovery under way.

        Raises:
            GaveUpError: There is none and there will be none.
        """
        healing = self._healing
        if healing is None:
            raise ConfigError("the engine was never started: call start_engine() in __init__")
        if self.final is not None or not healing.done():
            healing.result(timeout_s)
        engine = self._lives.engine
        if engine is None:
            raise ConfigError("the engine was stopped")
        return engine

    @property
    def proof(self) -> Proof:
        """What the serving engine has proved to hold, and what it answered with it."""
        return self._lives.weights.proof

    def bring_weights(self, doubt: Doubt | None = None) -> str:
        """Bring the serving engine to the source's current version and return that.

        With ``doubt``, also where it proves to have it: engines with the same weights answer otherwise.

        Raises:
            WeightsError: The source failed or its weights are unfit; the engine keeps what it had, or
                serves nobody where its answers showed it. One that a failed push left half loaded, or that
                goes on answering otherwise than it should, is rebuilt instead.
        """
        while True:
            engine = self.engine(self.patience_s)
            try:
                self._lives.weights.bring(engine, doubt)
                break
            except Exception as error:
                if self._replaced(engine):
                    continue  # once more, for the one that serves now; the budget bounds how often
                if not self._lives.weights.pending or self._lives.weights.refused:
                    raise
                self.report(error, engine.life).result(self.patience_s)
                if not self._lives.weights.refused:
                    break
        self._publish()
        return self._lives.weights.version

    def _replaced(self, engine: Engine) -> bool:
        """Say whether another engine serves now, waiting for a recovery that is under way."""
        healing = self._healing
        if healing is not None and not healing.done():
            healing.result(self.patience_s)
            return True
        return self.final is None and self._lives.engine is not engine

    def maintain(self) -> None:
        """Between requests: begin to take one safe setting back when its probation is due.

        Never blocks: whoever asks for the engine next waits for it, as for any recovery.
        """
        engine, state = self._lives.engine, self._recovery.state
        if not state.applied or engine is None or engine.progress().running or self.weights_pending:
            return
        lower = take_back(state, self._policy, self._around.now())
        if lower is None:
            return
        self._begin_anew(lambda: self._recovery.change(lower))

    def renew(self, why: str) -> Future[None] | None:
        """Begin to put a new engine in the place of one that serves; None where none does now.

        What runs goes on with the new one, as after a fault.
        """
        return None if self.ready is None else self._begin_anew(lambda: self._recovery.renew(why))

    def _begin_anew(self, work: Callable[[], None]) -> Future[None] | None:
        with self._lock:
            if self.final is not None or self._healing is None or not self._healing.done():
                return None
            healed = self._healing = Future()
            self._recovery.tally.serving = False
        self._run_aside(healed, work, None)
        return healed

    def processes(self) -> tuple[ProcessId, ...]:
        """Return the processes of the engine that serves; none while there is none."""
        engine = self.ready
        return () if engine is None else tuple(known.process for known in engine.processes())

    def status(self) -> dict[str, Any]:
        """Return what runs here, in plain types."""
        engine, state, tally = self._lives.engine, self._recovery.state, self._recovery.tally
        progress = None if engine is None else engine.progress()
        known = () if engine is None else engine.processes()
        pids = {role: [k.process.pid for k in known if k.role is role] for role in Role}
        return {
            "epoch": self._lives.epoch,
            "rung": len(state.applied),
            "settings": list(state.applied),
            "serving": self.serving,
            "weight_version": self._lives.weights.version,
            "requests_running": 0 if progress is None else len(progress.running),
            "tokens_generated": 0 if progress is None else progress.tokens,
            "restarts": tally.restarts,
            "pids": {"core": next(iter(pids[Role.ENGINE_CORE]), None), "workers": pids[Role.ENGINE_WORKER]},
            **(NO_STANDBY if self._lives.standby is None else self._lives.standby.status()),
        }

    def close(self, polite_s: float = 2.0) -> None:
        """End the engine and stop watching."""
        self._lives.close(polite_s)

    # -- for those who see it fail

    def report(
        self, error: BaseException | None, life: object, silence: Silence | None = None
    ) -> Future[None]:
        """Say that ``life`` failed; the future ends when a newer one serves, or fails for good."""
        detected_at = self._around.now()
        with self._lock:
            engine, healing = self._lives.engine, self._healing
            assert healing is not None  # nothing can fail before the start
            if self.final is not None or not healing.done() or engine is None or engine.life is not life:
                return healing
            healed = self._healing = Future()
            self._recovery.tally.serving = False

        def repair() -> None:
            self._recovery.repair(engine, error, silence, detected_at)

        self._run_aside(healed, repair, error)
        return healed

    def noticed(self, engine: Engine, silence: Silence | None) -> None:
        """Take what the watch saw: a process of ``engine`` died, or it is silent."""
        self.report(None, engine.life, silence)

    def failed(self, error: BaseException, engine: Engine) -> Future[None] | None:
        """Say that a call on ``engine`` raised; return its recovery, None when the engine is not at fault."""
        healing, now = self._healing, self._lives.engine
        if healing is not None and (not healing.done() or now is None or now.life is not engine.life):
            return healing
        with harmless("evidence"):
            if self._is_of_engine(error, engine):
                return self.report(error, engine.life)
        return None

    def _is_of_engine(self, error: BaseException, engine: Engine) -> bool:
        fault = self._recovery.facts(engine, error, None)
        if fault.exits or any(seen.type_name.endswith("EngineDeadError") for seen in fault.exceptions):
            return True
        if engine.processes():
            return False  # they live: an error of one call is that call's, though its worker logs it
        diagnosis = self._recovery.verdict(fault)
        return diagnosis.scope is Scope.ENGINE or diagnosis.kind in _POISONED

    # -- one recovery at a time

    def _run_aside(self, healed: Future[None], work: Callable[[], None], error: BaseException | None) -> None:
        thread = threading.Thread(target=self._run, args=(healed, work, error), name="rayguard-recovery")
        thread.daemon = True
        thread.start()

    def _run(self, healed: Future[None], work: Callable[[], None], error: BaseException | None) -> None:
        """Do ``work`` and tell every waiter how it ended."""
        try:
            work()
        except BaseException as failure:  # noqa: BLE001 - handed to the waiters
            self.final = self._final(failure, error)
            engine = self._lives.engine
            if engine is not None:
                engine.give_up()
                engine.interrupt(
                    self.final if isinstance(self.final, Exception) else RuntimeError(str(failure))
                )
            self._publish()
            healed.set_exception(self.final)
        else:
            healed.set_result(None)
            self._publish()

    def _final(self, failure: BaseException, error: BaseException | None) -> BaseException:
        """Return what callers get; for a bug of our own, what they would have got without us."""
        if isinstance(failure, GaveUpError) or self._lives.engine is None:
            return failure
        _log.error("rayguard: the recovery itself failed", exc_info=failure)
        TALLY.guard_error("recovery")
        return failure if error is None else error

    def _publish(self) -> None:
        tally, state = self._recovery.tally, self._recovery.state
        tally.epoch = self._lives.epoch
        tally.rung, tally.settings = len(state.applied), state.applied
        tally.serving = self.serving
        tally.weight_version = self._lives.weights.version
        with harmless("status"):
            self._around.changed()
