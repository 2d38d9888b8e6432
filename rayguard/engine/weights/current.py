"""Which weights an engine must have before it serves, and the proof that it has them.

The weights themselves are ``rayguard.engine.weights.version``; loading them is each adapter's ``push``.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from typing import TYPE_CHECKING

from rayguard.engine.weights.canaries import Canaries, Heard
from rayguard.engine.weights.changes import WeightChanges
from rayguard.engine.weights.fetch import fetch
from rayguard.engine.weights.history import PushHistory
from rayguard.engine.weights.loading import Loading
from rayguard.engine.weights.proof import Doubt, Proof
from rayguard.engine.weights.sources import HeldWeights, OwnPush, WeightSource
from rayguard.errors import RecoveryTimeoutError, WeightsError, WeightSourceError

if TYPE_CHECKING:
    from collections.abc import Callable

    from rayguard.engine.protocol import Engine
    from rayguard.engine.weights.version import Weights


_log = logging.getLogger("rayguard")
_TURN = 3  # deadlines: to fetch weights, and to push them twice
_STILL_THERE_S = 10.0  # for a question; an engine that is too busy for it gets the weights again
_IDLE_S = 3.0  # for the same question to an engine that has nothing to do


class CurrentWeights:
    """Brings engines to the version that the source says is current.

    Invariant: ``proof`` is what the engine that serves proved to have, never what was only sent.
    """

    def __init__(
        self, source: WeightSource | OwnPush | None, deadline_s: float, canaries: Canaries | None = None
    ) -> None:
        self._replay = source if isinstance(source, OwnPush) else None
        self._source = None if isinstance(source, OwnPush) else source
        self.changes = WeightChanges(watched=source is None)
        self._history = PushHistory()
        self._canaries = canaries or Canaries(None)
        self._loading = Loading(self._canaries, self._history, deadline_s)
        self._half_loaded = False  # since a push failed; a new engine has the model's own weights
        self._deadline_s = deadline_s
        self._diverged = ""  # digest of weights that made no numbers in one life of the engine
        self._refused = ("", "")  # digest of weights that made none in two, and what is said of them
        self._ill = False  # the engine that serves computed NaN: its cache may hold some for ever
        self.proof = Proof()
        self.pending = False  # an engine serves nobody until this is False
        self.pushed: Callable[[Weights], None] | None = None  # told of each version that the engine took
        self._of: Engine | None = None  # whose book this is; a push to the one before it must not be entered
        self._turn = threading.Lock()
        self._bringing = threading.Lock()  # for each engine its own; who comes second finds it done

    @property
    def version(self) -> str:
        """What the engine that serves has; empty where that is unknown."""
        return self.changes.said if self._replay and self.proof.version else self.proof.version

    @property
    def refused(self) -> bool:
        """Whether no engine serves, and no other one would do better: of the weights or of their source."""
        return self.pending and bool(self._refused[1])

    @property
    def fixed(self) -> bool:
        """Whether engines keep the weights they were built with."""
        return self._source is None

    def begin(self, engine: Engine, had: Proof | None = None) -> None:
        """See to it that ``engine``, which is to serve next, has the weights it must have.

        ``had`` is what it was brought to while it waited as a standby. If that is what the engine before it
        had, it may serve without asking the source: callers go on as if nothing had happened, and a trainer
        that is busy holds nobody up.

        Raises:
            WeightsError, RecoveryTimeoutError: As ``bring``.
        """
        with self._turn:
            last = None if self.pending else self.proof
            # It has the weights it was built with: others are needed, if there is a source.
            self._of, self.pending, self.proof = engine, not self.changes.watched, Proof()
            self._ill, self._half_loaded, self._bringing = False, False, threading.Lock()
            self._refuse("", "")
        engine.follow(self.changes)
        if not self.pending:
            if self.changes.changed:
                self.changes.lose()
            return
        if had is not None and had.digest and self._proves(engine, had, _IDLE_S):
            self.proof = self._history.goes_on(had)
        if had is not None and had == last == self.proof and self._replay is None:
            self.pending = False
        elif engine.can_push():
            try:
                self.bring(engine)
            except WeightsError:
                if self.pending and not self.refused:
                    raise
                # No next engine would do better: this one serves nobody, and waits for another version.

    def prepare(self, engine: Engine, pushed: Weights | None) -> Proof:
        """Bring an engine that does not serve to ``pushed``, or to what the source has, and read it back.

        Raises:
            WeightsError, RecoveryTimeoutError: As ``bring``.
        """
        wanted = pushed or self._fetch("")
        if wanted is None or isinstance(wanted, HeldWeights):
            return Proof()
        if pushed is None:
            try:
                self._history.judge(wanted, engine)
            except WeightsError:
                wanted = self._history.kept()  # as the engine that serves would
                if wanted is None:
                    raise
        return self._load(wanted, engine)

    def bring(self, engine: Engine, doubt: Doubt | None = None, *, needed: bool = False) -> str:
        """Load the current version into ``engine`` and read back what it has now.

        Where ``engine`` proves that it has that version already, nothing is sent, nor fetched if the source
        can tell; unless there is ``doubt`` about what it makes of it. A doubt about other weights is void.
        ``needed``: only where it still lacks weights, once whoever brought some meanwhile is done.

        Raises:
            WeightSourceError: The source failed or is too slow; one that may recover is asked again.
            WeightsError: The weights are unfit (NaN, malformed), the engine reports others than it was
                sent, answers wrongly with them, or was replaced meanwhile.
            RecoveryTimeoutError: The deadline passed.
        """
        bringing = self._bringing
        if not bringing.acquire(timeout=_TURN * self._deadline_s):
            raise RecoveryTimeoutError("others are still bringing weights to this engine")
        try:
            return self.version if needed and not self.pending else self._bring(engine, doubt)
        finally:
            bringing.release()

    def _bring(self, engine: Engine, doubt: Doubt | None) -> str:
        if self.changes.lost:
            raise WeightsError(self.changes.refusal)
        if self._replay is not None:
            return self._replayed(self._replay, engine)
        held = self.proof
        wanted = self._other(engine, doubt)
        if wanted is None:
            self._enter(engine, held)
        else:
            self._judge(wanted, engine)
            self._take(wanted, engine, doubt, held)
        return self.version

    def _other(self, engine: Engine, doubt: Doubt | None) -> Weights | None:
        """Return the current version, None where ``engine`` has it already."""
        held = self.proof.digest
        wanted = self._fetch(held)
        again = doubt is not None and held in {"", doubt.digest}
        if wanted is not None and not again and self._is_held(wanted, engine):
            return None
        if isinstance(wanted, HeldWeights):
            wanted = self._fetch("")
        if isinstance(wanted, HeldWeights):
            return None
        self._history.built_in = self._history.built_in or wanted is None
        return wanted

    def _take(self, wanted: Weights, engine: Engine, doubt: Doubt | None, held: Proof) -> None:
        self._enter(engine, None)  # from here on the engine may be half loaded
        if self._ill:
            raise _not_served(wanted, "the engine's cache holds NaN of the weights before them")
        before = self._history.failures(wanted)
        try:
            if doubt is None or doubt.digest != wanted.digest:
                proof = self._load(wanted, engine)
            else:
                loaded = self._loading.load_again(wanted, engine, doubt, held.canary)
                proof = self._proven(wanted, engine, *loaded)
        except WeightsError as error:
            if self._history.failures(wanted) > before:
                self._restore(engine, held, wanted, error)
            raise
        self._enter(engine, proof)
        self._history.proved(wanted)
        if self.pushed is not None:
            self.pushed(wanted)

    def _judge(self, wanted: Weights, engine: Engine) -> None:
        """Refuse unfit weights; an engine that has none yet gets those that served last."""
        try:
            self._history.judge(wanted, engine)
        except WeightsError as unfit:
            self._canaries.unfit(wanted, str(unfit))
            if self.pending and not self._ill:
                self._fall_back(engine, unfit)
            raise
        if wanted.digest == self._refused[0]:
            raise WeightsError(self._refused[1])

    def _fall_back(self, engine: Engine, unfit: Exception) -> None:
        kept = self._history.kept()
        if kept is not None:
            self._enter(engine, None)
            self._enter(engine, self._load(kept, engine))
            _log.warning("rayguard: weights %r serve on, as %s", kept.version, unfit)
        elif self._history.built_in and not self._half_loaded:
            self._enter(engine, Proof())
        else:
            self._refuse("", str(unfit))

    def _restore(self, engine: Engine, held: Proof, wanted: Weights, error: Exception) -> None:
        """Give ``engine`` back what it had before ``wanted`` failed; where that cannot be, it is rebuilt."""
        self._canaries.unfit(wanted, str(error))
        if held.digest and self._proves(engine, held, _IDLE_S):
            self._enter(engine, held)
        elif (kept := self._history.kept()) is not None:
            with contextlib.suppress(Exception):  # then it is rebuilt
                self._enter(engine, self._load(kept, engine))
        elif self._history.gave_up(wanted) and not self._history.built_in:
            self._refuse("", str(error))

    def _replayed(self, replay: OwnPush, engine: Engine) -> str:
        self._enter(engine, None)
        try:
            version = engine.replay(replay.push, deadline_s=self._deadline_s)
        except Exception as error:
            if engine.exits():
                raise
            why = f"start_engine(weights=...) failed to push into an engine: {type(error).__name__}: {error}"
            self._refuse("", why)
            raise WeightSourceError(why) from error
        self.changes.said = version if isinstance(version, str) else ""
        self._enter(engine, Proof(self.changes.said))
        return self.version

    def _refuse(self, digest: str, why: str) -> None:
        """Let the engine serve nobody while it has no weights (because of those with ``digest``)."""
        self._refused, self.changes.refusal = (digest, why), why

    def _enter(self, engine: Engine, proof: Proof | None) -> None:
        with self._turn:
            if engine is not self._of:
                raise WeightsError("the engine was replaced while weights were brought to it")
            self.proof, self.pending, self._half_loaded = proof or Proof(), proof is None, proof is None
            self._refuse("", "")

    def _load(self, wanted: Weights, engine: Engine) -> Proof:
        return self._proven(wanted, engine, *self._loading.load(wanted, engine))

    def _proven(self, wanted: Weights, engine: Engine, heard: Heard, was: str) -> Proof:
        if heard.wrong:
            raise self._unfit(wanted, engine, heard)
        if heard.answer is not None and wanted.digest == self._diverged:
            self._diverged = ""  # that life was damaged
        if was:
            self._canaries.healed(wanted, was)
        return Proof(wanted.version, wanted.digest, heard.full, self._canaries.tolerance)

    def _unfit(self, wanted: Weights, engine: Engine, heard: Heard) -> WeightsError:
        unfit = _not_served(wanted, heard.wrong)
        if not heard.diverged:
            self._canaries.reject(wanted, heard)
        elif engine is self._of:  # a standby may be damaged where this one is not
            self._ill = True
            if wanted.digest == self._diverged:  # in another life: they are at fault, and no engine
                self._canaries.refused(wanted, heard.wrong)
                self._refuse(wanted.digest, str(unfit))
            self._diverged = wanted.digest
        return unfit

    def _is_held(self, wanted: Weights | HeldWeights, engine: Engine) -> bool:
        """Ask the engine, not only our own book: what changed it since may have passed us by."""
        proof = self.proof
        if not proof.digest or wanted.version != proof.version:
            return False
        if not isinstance(wanted, HeldWeights) and wanted.digest != proof.digest:
            return False
        return self._proves(engine, proof, _STILL_THERE_S)

    def _proves(self, engine: Engine, proof: Proof, deadline_s: float) -> bool:
        with contextlib.suppress(Exception):  # a dead engine: the push says so, and what follows from it
            receipts = engine.receipts(deadline_s=min(deadline_s, self._deadline_s))
            return bool(receipts) and all(Proof(one.version, one.digest) == proof for one in receipts)
        return False

    def _fetch(self, held: str) -> Weights | HeldWeights | None:
        return None if self._source is None else fetch(self._source, held, self._deadline_s)


def _not_served(weights: Weights, why: str) -> WeightsError:
    return WeightsError(f"weights {weights.version!r} are not served: {why}")
