"""Keeps one engine slot alive: failures come in, at most one recovery at a time goes out.

An *epoch* is one life of the engine. Whoever saw epoch n fail joins the recovery to n + 1 and never starts
a second one; a report about an older life is answered by the recovery that replaced it. What a recovery
does is ``rayguard.engine.supervision.recovery``.
"""

from __future__ import annotations

import logging
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from rayguard.engine.calls import call_of, lost
from rayguard.engine.deadline import as_error
from rayguard.engine.supervision.slot_status import status_of
from rayguard.engine.supervision.turns import EngineTurns
from rayguard.errors import ConfigError, GaveUpError, WeightsError
from rayguard.harmless import harmless
from rayguard.recovery.machine import take_back
from rayguard.recovery.tally import TALLY

if TYPE_CHECKING:
    from collections.abc import Callable

    from rayguard.engine.context import Surroundings
    from rayguard.engine.protocol import Engine
    from rayguard.engine.supervision.lifecycle import Lives
    from rayguard.engine.supervision.recovery import Recovery
    from rayguard.engine.weights.changes import WeightChanges
    from rayguard.engine.weights.proof import Doubt, Proof
    from rayguard.errors import EngineCallError, WrongTokensError
    from rayguard.faults.fault import Silence
    from rayguard.process.identity import ProcessId
    from rayguard.recovery.policy import GuardPolicy

_log = logging.getLogger("rayguard")


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
        self.turns = EngineTurns(lives, policy.patience_s)

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
    def changes(self) -> WeightChanges:
        """What the user's own code did to the weights."""
        return self._lives.weights.changes

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
            if timeout_s:
                self._recovery.wanted.set()
            healing.result(timeout_s)
        engine = self._lives.engine
        if engine is None:
            raise ConfigError("the engine was stopped")
        return engine

    @property
    def proof(self) -> Proof:
        """What the serving engine has proved to hold, and what it answered with it."""
        return self._lives.weights.proof

    def bring_weights(self, doubt: Doubt | None = None, *, needed: bool = False) -> str:
        """Bring the serving engine to the source's current version and return that.

        With ``doubt``, also where it proves to have it: engines with the same weights answer otherwise.
        ``needed``: only while it lacks weights.

        Raises:
            WeightsError: The source failed or its weights are unfit; the engine keeps what it had, or
                serves nobody where its answers showed it. One that a failed push left half loaded, or that
                goes on answering otherwise than it should, is rebuilt instead.
        """
        while True:
            engine = self.engine(self.patience_s)
            try:
                self._lives.weights.bring(engine, doubt, needed=needed)
                break
            except Exception as error:
                if self._replaced(engine):
                    continue  # once more, for the one that serves now; the budget bounds how often
                if not self._lives.weights.pending or self._lives.weights.refused:
                    raise
                self.report(error, engine.life).result(self.patience_s)  # the next one may serve older ones
        self._publish()
        return self._lives.weights.version

    def _replaced(self, engine: Engine) -> bool:
        """Say whether another engine serves now, waiting for a recovery that is under way."""
        healing = self._healing
        if healing is not None and not healing.done():
            healing.result(self.patience_s)
            return True
        return self.final is None and self._lives.engine is not engine

    def catch_up(self) -> None:
        """Bring the current weights, or those that served last where the current ones are unfit.

        Raises:
            WeightsError: As ``bring_weights``, where the engine serves nobody.
        """
        try:
            self.bring_weights(needed=True)
        except WeightsError:
            if self.weights_pending:
                raise

    def maintain(self) -> None:
        """Between requests: begin to take one safe setting back when its probation is due.

        Never blocks: whoever asks for the engine next waits for it, as for any recovery.
        """
        engine, state = self._lives.engine, self._recovery.state
        if not state.applied or engine is None or self._bound:
            return
        progress = engine.progress()
        if progress.running or progress.calls:
            return
        lower = take_back(state, self._policy, self._around.now())
        if lower is None:
            return
        self._begin_anew(lambda: self._recovery.change(lower))

    def renew(self, why: str) -> Future[None] | None:
        """Begin to put a new engine in the place of one that serves; None where none does now.

        What runs goes on with the new one, as after a fault.
        """
        if self.ready is None or self._bound:
            return None
        return self._begin_anew(lambda: self._recovery.renew(why))

    @property
    def _bound(self) -> bool:
        """Whether this engine must stay: it lacks weights, or has some that no next one could get."""
        return self.weights_pending or self.changes.irreplaceable

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
        return status_of(self._lives, self._recovery, serving=self.serving)

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
            self._recovery.wanted.clear()

        def repair() -> None:
            self._recovery.repair(engine, error, silence, detected_at)

        self._run_aside(healed, repair, error)
        return healed

    def failed(self, error: BaseException, engine: Engine) -> Future[None] | None:
        """Say that a call on ``engine`` raised; return its recovery, None when the engine is not at fault."""
        healing, now, call = self._healing, self._lives.engine, call_of(error)
        if call is not None and now is not None and call.was_made_to(now.life):
            engine = now  # which is not the one that its caller began with
        if healing is None or (healing.done() and now is not None and now.life is engine.life):
            healing = None
            with harmless("evidence"):
                if self._recovery.is_of_engine(error, engine):
                    healing = self.report(error, engine.life)
        if healing is not None:
            self._recovery.wanted.set()  # whoever asks waits for it
        return healing

    def doubted(self, error: WrongTokensError, engine: Engine) -> None:
        """Say that ``engine`` gives wrong tokens: it is replaced, where its weights can be had again."""
        act = self._recovery.tell if self.changes.irreplaceable else self.report
        act(error, engine.life)

    def lost_call(self, error: BaseException) -> EngineCallError | None:
        """Return what its caller gets for a call that a death cut off; None where ``error`` is of no call."""
        return lost(error, self._recovery.last)

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
            self.final = self._final(as_error(failure, "what an engine is made of"), error)
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

    def _final(self, failure: Exception, error: BaseException | None) -> BaseException:
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
