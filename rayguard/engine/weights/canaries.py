"""Asks engines for canaries after a push, remembers what was answered with which weights, says what is wrong.

What an answer means is decided in ``canary``; fencing an engine and loading it again is ``current``'s. A
failure in here is counted and ignored: weights are then as well proved as by their receipts alone.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rayguard.engine.weights.canary import Canary, absurd, disagreement, diverged, sick, torn
from rayguard.faults.diagnosis import Kind, Scope
from rayguard.harmless import harmless
from rayguard.recovery.incident import Incident, Outcome

if TYPE_CHECKING:
    from rayguard.engine.context import Surroundings
    from rayguard.engine.protocol import Engine
    from rayguard.engine.weights.version import Weights

_log = logging.getLogger("rayguard")
ANSWER_S = 60.0  # for a few tokens of an engine that may have to compile first
_KEPT = 8  # versions; engines are rebuilt with the current one
_PATIENCE = 3  # canaries in a row without an answer (a death counts twice), then no more are asked
_AGAIN, _REFUSED, REPLACED, UNDECIDED = "push_again", "refuse_weights", "replace_engine", "push_again_to_all"
UNFIT, COLLAPSED = "keep_weights", "serve_and_tell"
_OUTCOMES = {_AGAIN: Outcome.RECOVERED, UNFIT: Outcome.ANSWERED}
_ADVICE = {
    COLLAPSED: (
        "look at the rewards and at samples of this step: the policy may have collapsed, or the trainer may "
        "have pushed weights that it never filled"
    ),
    UNFIT: "weights that served before serve on; look at how the trainer gathers and names its tensors",
    _AGAIN: "if it comes again, look at the memory of its device (ECC errors, Xid in the kernel's log)",
    _REFUSED: (
        "look at the loss and the gradient norm of the step that made this version, and offer an older one; "
        "if the trainer's own outputs are finite, its weights may be too large for the engine's dtype"
    ),
    REPLACED: (
        "look at the memory of its device (ECC errors, Xid in the kernel's log); if its hardware or dtype "
        "is meant to differ from the others', raise GuardPolicy.canary_tolerance"
    ),
    UNDECIDED: (
        "they serve, and one of them may be wrong: look at the memory of their devices, or add an engine, "
        "which decides it; if they are meant to differ, raise GuardPolicy.canary_tolerance"
    ),
}


@dataclass(frozen=True, slots=True)
class Heard:
    """What came of one question: ``answer`` is None where none came, ``wrong`` empty where it may serve."""

    answer: Canary | None = None
    wrong: str = ""

    @property
    def full(self) -> Canary | None:
        """The answer that others may be compared with."""
        return None if self.answer is None or self.answer.bare else self.answer

    @property
    def diverged(self) -> bool:
        """Whether the weights themselves make no numbers."""
        return self.answer is not None and diverged(self.answer)


class Canaries:
    """The canaries of one engine slot, its standby's included. ``tolerance`` in nats; None: none is asked."""

    def __init__(self, tolerance: float | None, around: Surroundings | None = None) -> None:
        self._tolerance = tolerance
        self._around = around
        # By the digest of the weights, of earlier lives: who agrees with one of them is believed.
        self._answers: OrderedDict[str, tuple[Canary, ...]] = OrderedDict()
        self._unanswered = 0
        self._unfit = ""  # version that was told as unfit
        self._collapsed = ""  # digest of what was told to repeat itself

    @property
    def tolerance(self) -> float:
        """Nats by which answers may differ; 0 where none is asked."""
        return self._tolerance or 0.0

    def ask(self, engine: Engine, weights: Weights, deadline_s: float) -> Heard:
        """Let ``engine``, which has just proved to hold ``weights``, answer; never raises."""
        if self._tolerance is None:
            return Heard()
        with harmless("canary"):
            answer = engine.canary(deadline_s=min(ANSWER_S, deadline_s))
            if answer is None:
                return Heard()
            self._unanswered = 0
            wrong = self._wrong(answer, weights.digest, self._tolerance)
            if answer.bare and (wrong or self._repeats(answer, weights.digest)):
                # Which may be chance, or NaN: worth what log-probabilities cost.
                closer = engine.canary(deadline_s=min(ANSWER_S, deadline_s), closely=True)
                if closer is not None:
                    answer, wrong = closer, self._wrong(closer, weights.digest, self._tolerance)
            if not wrong and absurd(answer) and self._repeats(answer, weights.digest):
                self._tell_collapsed(weights, answer)
            return Heard(answer, wrong)
        # Where it died as it answered: engines must not go on dying for our curiosity.
        self._unanswered += 2 if engine.exits() else 1
        if self._unanswered >= _PATIENCE:
            _log.warning("rayguard: no more canaries are asked: this engine does not answer them")
            self._tolerance = None
        return Heard()

    def _repeats(self, answer: Canary, digest: str) -> bool:
        """Whether it says one token for ever, where other weights made it say several."""
        others = (known for other, many in self._answers.items() if other != digest for known in many)
        return len(set(answer.tokens)) == 1 and any(len(set(other.tokens)) > 1 for other in others)

    def _tell_collapsed(self, weights: Weights, answer: Canary) -> None:
        if weights.digest != self._collapsed:
            self._collapsed = weights.digest
            cause = (
                f"with weights {weights.version!r} the engine says token {answer.tokens[0]} again and again, "
                "and with those before it did not; they serve"
            )
            tell(self._around, Kind.WEIGHT_SYNC_FAILED, Scope.JOB, cause, COLLAPSED)

    def _wrong(self, answer: Canary, digest: str, tolerance: float) -> str:
        if ill := sick(answer) or torn(answer, tolerance):
            return ill
        earlier = self._answers.get(digest, (answer,))
        differs = [disagreement(answer, other, tolerance) for other in earlier]
        if all(differs):
            return f"the engine answers otherwise than it should with these weights: {differs[0]}"
        self._keep(digest, earlier[differs.index("")])
        return ""

    def reject(self, weights: Weights, heard: Heard) -> None:
        """Remember what a life insists on: two that agree are believed, whatever an older one said."""
        if heard.answer is not None and not sick(heard.answer):
            self._keep(weights.digest, *self._answers.get(weights.digest, ()), heard.answer)

    def prefer(self, weights: Weights, answer: Canary | None) -> None:
        """Hold engines with these weights to what most of them answer; None: to nothing said before."""
        self._answers.pop(weights.digest, None)
        if answer is not None:
            self._keep(weights.digest, answer)

    def _keep(self, digest: str, *answers: Canary) -> None:
        self._answers[digest] = answers
        self._answers.move_to_end(digest)
        while len(self._answers) > _KEPT:
            self._answers.popitem(last=False)

    def healed(self, weights: Weights, wrong: str) -> None:
        """Tell that loading ``weights`` once more helped."""
        cause = (
            f"with weights {weights.version!r}, proved by their digest, {wrong}; loaded once more, they serve"
        )
        tell(self._around, Kind.WEIGHT_SYNC_FAILED, Scope.ENGINE, cause, _AGAIN)

    def unfit(self, weights: Weights, why: str) -> None:
        """Tell, once for each version, that ``weights`` are unfit, and those before them serve on."""
        if weights.version != self._unfit:
            self._unfit = weights.version
            tell(self._around, Kind.WEIGHT_SYNC_FAILED, Scope.JOB, why, UNFIT)

    def refused(self, weights: Weights, wrong: str) -> None:
        """Tell that ``weights`` are not served."""
        cause = f"weights {weights.version!r} are not served: {wrong}, in two lives of the engine"
        tell(self._around, Kind.NUMERIC_NAN, Scope.JOB, cause, _REFUSED)


def tell(around: Surroundings | None, kind: Kind, scope: Scope, cause: str, remedy: str) -> None:
    """Log what canaries showed and what was done about it (``remedy``), and write its incident."""
    _log.warning("rayguard: %s; %s", cause, _ADVICE[remedy])
    if around is None:
        return
    with harmless("canary"):
        incident = Incident(
            kind=kind.value,
            scope=scope.value,
            cause=cause,
            signature="rayguard.weights" if remedy == UNFIT else "rayguard.weights.canary",
            confidence=0.95,
            advice=_ADVICE[remedy],
            remedy=remedy,
            outcome=_OUTCOMES.get(remedy, Outcome.FAILED),
        )
        around.noticed(incident)
