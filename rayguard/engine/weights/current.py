"""Which weights an engine must have before it serves, and the proof that it has them.

The weights themselves are ``rayguard.engine.weights.version``; loading them is each adapter's ``push``.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_random_exponential

from rayguard.engine.bounded import bounded
from rayguard.engine.weights.canaries import Canaries, Heard
from rayguard.engine.weights.canary import disagreement
from rayguard.engine.weights.sources import CallbackWeights, Held
from rayguard.engine.weights.version import check, verify
from rayguard.errors import RecoveryTimeoutError, WeightsError, WeightSourceError

if TYPE_CHECKING:
    from collections.abc import Callable

    from rayguard.engine.protocol import Engine
    from rayguard.engine.weights.canary import Canary
    from rayguard.engine.weights.sources import WeightSource
    from rayguard.engine.weights.version import Weights


_log = logging.getLogger("rayguard")
_DOUBTED = "other engines answer otherwise than this one"
_TURN = 3  # deadlines: to fetch weights, and to push them twice
_STILL_THERE_S = 10.0  # for a question; an engine that is too busy for it gets the weights again
_IDLE_S = 3.0  # for the same question to an engine that has nothing to do
_PASSING = frozenset({"ActorUnavailableError", "GetTimeoutError", "ObjectLostError", "RaySystemError"})


@dataclass(frozen=True, slots=True)
class Proof:
    """What an engine has proved to hold; empty: only what it was built with.

    ``canary`` is what it answered with it, None where it was not asked; others may differ from it by
    ``tolerance`` nats.
    """

    version: str = ""
    digest: str = ""
    canary: Canary | None = field(default=None, compare=False)
    tolerance: float = field(default=0.0, compare=False)


@dataclass(frozen=True, slots=True)
class Doubt:
    """Other engines answer otherwise with the weights of this ``digest``.

    ``answer`` is what most of them say; None where as many say one thing as another.
    """

    digest: str
    answer: Canary | None = None


class CurrentWeights:
    """Brings engines to the version that the source says is current.

    Invariant: ``proof`` is what the engine that serves proved to have, never what was only sent.
    """

    def __init__(
        self, source: WeightSource | None, deadline_s: float, canaries: Canaries | None = None
    ) -> None:
        self._source = source
        self._deadline_s = deadline_s
        self._canaries = canaries or Canaries(None)
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
        """What the engine that serves has."""
        return self.proof.version

    @property
    def refused(self) -> bool:
        """Whether no engine is served the current weights because they make no numbers, in any life."""
        return self.pending and bool(self._refused[0])

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
            self._of, self.pending, self.proof = engine, self._source is not None, Proof()
            self._refused, self._ill, self._bringing = ("", ""), False, threading.Lock()
        if not self.pending:
            return
        if had is not None and had.digest and self._proves(engine, had, _IDLE_S):
            self.proof = had
        if had is not None and had == last == self.proof:
            self.pending = False
        elif engine.can_push():
            try:
                self.bring(engine)
            except WeightsError:
                if not self.refused:
                    raise
                # No next engine would do better: this one serves nobody, and waits for another version.

    def prepare(self, engine: Engine, pushed: Weights | None) -> Proof:
        """Bring an engine that does not serve to ``pushed``, or to what the source has, and read it back.

        Raises:
            WeightsError, RecoveryTimeoutError: As ``bring``.
        """
        wanted = pushed or self._fetch("")
        if wanted is None or isinstance(wanted, Held):
            return Proof()
        if pushed is None:
            check(wanted)
        return self._load(wanted, engine)

    def bring(self, engine: Engine, doubt: Doubt | None = None) -> str:
        """Load the current version into ``engine`` and read back what it has now.

        Where ``engine`` proves that it has that version already, nothing is sent, nor fetched if the source
        can tell; unless there is ``doubt`` about what it makes of it. A doubt about other weights is void.

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
            return self._bring(engine, doubt)
        finally:
            bringing.release()

    def _bring(self, engine: Engine, doubt: Doubt | None) -> str:
        held = self.proof
        wanted = self._fetch(held.digest)
        again = doubt is not None and held.digest in {"", doubt.digest}
        if wanted is not None and not again and self._is_held(wanted, engine):
            self._enter(engine, self.proof)
            return self.version
        if isinstance(wanted, Held):
            wanted = self._fetch("")
        if wanted is None or isinstance(wanted, Held):
            self._enter(engine, self.proof)
            return self.version
        check(wanted)
        if wanted.digest == self._refused[0]:
            raise WeightsError(self._refused[1])
        self._enter(engine, None)  # from here on the engine may be half loaded
        if self._ill:
            raise _not_served(wanted, "the engine's cache holds NaN of the weights before them")
        if doubt is None or doubt.digest != wanted.digest:
            self._enter(engine, self._load(wanted, engine))
        else:
            self._enter(engine, self._load_again(wanted, engine, doubt, held.canary))
        if self.pushed is not None:
            self.pushed(wanted)
        return self.version

    def _enter(self, engine: Engine, proof: Proof | None) -> None:
        with self._turn:
            if engine is not self._of:
                raise WeightsError("the engine was replaced while weights were brought to it")
            self.proof, self.pending = proof or Proof(), proof is None
            self._refused = ("", "")

    def _load(self, wanted: Weights, engine: Engine) -> Proof:
        """Push ``wanted`` and hear what the engine makes of it; once more where that is wrong."""
        was, heard = "", self._push(wanted, engine)
        if heard.wrong and not heard.diverged:
            _log.warning("rayguard: weights %r are loaded once more: %s", wanted.version, heard.wrong)
            was = heard.wrong
            heard = self._heard_again(wanted, engine, was)
        return self._proven(wanted, engine, heard, was)

    def _load_again(self, wanted: Weights, engine: Engine, doubt: Doubt, before: Canary | None) -> Proof:
        """Push what the engine has already, and with which it answered ``before`` otherwise than others."""
        _log.warning("rayguard: weights %r are loaded once more: %s", wanted.version, _DOUBTED)
        self._canaries.prefer(wanted, doubt.answer)
        if doubt.answer is not None:
            return self._proven(wanted, engine, self._heard_again(wanted, engine, _DOUBTED), _DOUBTED)
        heard = self._push(wanted, engine)
        now = heard.answer  # where it is the same again, this engine may have been right
        helped = before and now and disagreement(before, now, self._canaries.tolerance)
        return self._proven(wanted, engine, heard, _DOUBTED if helped else "")

    def _heard_again(self, wanted: Weights, engine: Engine, was: str) -> Heard:
        heard = self._push(wanted, engine)
        return heard if heard.answer is not None else Heard(wrong=was)  # nothing shows that it helped

    def _proven(self, wanted: Weights, engine: Engine, heard: Heard, was: str) -> Proof:
        if heard.wrong:
            raise self._unfit(wanted, engine, heard)
        if heard.answer is not None and wanted.digest == self._diverged:
            self._diverged = ""  # that life was damaged
        if was:
            self._canaries.healed(wanted, was)
        return Proof(wanted.version, wanted.digest, heard.answer, self._canaries.tolerance)

    def _push(self, wanted: Weights, engine: Engine) -> Heard:
        verify(wanted, engine.push(wanted, deadline_s=self._deadline_s))
        return self._canaries.ask(engine, wanted, self._deadline_s)

    def _unfit(self, wanted: Weights, engine: Engine, heard: Heard) -> WeightsError:
        unfit = _not_served(wanted, heard.wrong)
        if not heard.diverged:
            self._canaries.reject(wanted, heard)
        elif engine is self._of:  # a standby may be damaged where this one is not
            self._ill = True
            if wanted.digest == self._diverged:  # in another life: they are at fault, and no engine
                self._canaries.refused(wanted, heard.wrong)
                self._refused = (wanted.digest, str(unfit))
            self._diverged = wanted.digest
        return unfit

    def _is_held(self, wanted: Weights | Held, engine: Engine) -> bool:
        """Ask the engine, not only our own book: what changed it since may have passed us by."""
        proof = self.proof
        if not proof.digest or wanted.version != proof.version:
            return False
        if not isinstance(wanted, Held) and wanted.digest != proof.digest:
            return False
        return self._proves(engine, proof, _STILL_THERE_S)

    def _proves(self, engine: Engine, proof: Proof, deadline_s: float) -> bool:
        with contextlib.suppress(Exception):  # a dead engine: the push says so, and what follows from it
            receipts = engine.receipts(deadline_s=min(deadline_s, self._deadline_s))
            return bool(receipts) and all(Proof(one.version, one.digest) == proof for one in receipts)
        return False

    def _fetch(self, held: str) -> Weights | Held | None:
        source = self._source
        if source is None:
            return None
        ask = partial(source.current_unless, held) if isinstance(source, CallbackWeights) else source.current
        again = Retrying(
            retry=retry_if_exception(_may_pass),
            wait=wait_random_exponential(multiplier=0.2, max=5.0),
            stop=stop_after_delay(self._deadline_s),
            reraise=True,
        )
        try:
            fetched: Weights | Held | None = again(bounded, ask, self._deadline_s, "rayguard-weights")
        except TimeoutError as late:
            raise WeightSourceError(f"the weight source took over {self._deadline_s:.0f} s") from late
        except WeightsError:
            raise
        except Exception as error:
            raise WeightSourceError(f"the weight source failed: {type(error).__name__}: {error}") from error
        return fetched


def _not_served(weights: Weights, why: str) -> WeightsError:
    return WeightsError(f"weights {weights.version!r} are not served: {why}")


def _may_pass(error: BaseException) -> bool:
    """Say whether asking again may help: a trainer that is restarting comes back, a dead one does not."""
    return any(kind.__name__ in _PASSING for kind in type(error).__mro__)
