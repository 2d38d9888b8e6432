"""Asks engines for canaries after a push, remembers what was answered with which weights, says what is wrong.

What an answer means is decided in ``canary``; fencing an engine and loading it again is ``current``'s. A
failure in here is counted and ignored: weights are then as well proved as by their receipts alone.
"""

from __future__ import annotations

import logging
import uuid
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rayguard.engine.weights.canary import Canary, disagreement, diverged, sick
from rayguard.faults.diagnosis import Kind, Scope
from rayguard.recovery.harmless import harmless
from rayguard.recovery.incident import Incident, Outcome
from rayguard.recovery.tally import TALLY

if TYPE_CHECKING:
    from rayguard.engine.protocol import Engine
    from rayguard.engine.surroundings import Surroundings
    from rayguard.engine.weights.version import Weights

_log = logging.getLogger("rayguard")
ANSWER_S = 60.0  # for eight tokens of an engine that may have to compile first
_KEPT = 8  # versions; engines are rebuilt with the current one
_PATIENCE = 3  # canaries in a row without an answer (a death counts twice), then no more are asked
_AGAIN, _REFUSED, REPLACED, UNDECIDED = "push_again", "refuse_weights", "replace_engine", "push_again_to_all"
_ADVICE = {
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
    def diverged(self) -> bool:
        """Whether the weights themselves make no numbers."""
        return self.answer is not None and diverged(self.answer)


class Canaries:
    """The canaries of one engine slot, its standby's included. ``tolerance`` in nats; None: none is asked."""

    def __init__(self, tolerance: float | None, around: Surroundings | None = None) -> None:
        self._tolerance = tolerance
        self._around = around
        self._trusted: OrderedDict[str, Canary] = OrderedDict()  # by the digest of the weights
        self._rejected: OrderedDict[str, Canary] = OrderedDict()  # what an earlier life insisted on
        self._unanswered = 0

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
            return Heard(answer, self._wrong(answer, weights.digest, self._tolerance))
        # Where it died as it answered: engines must not go on dying for our curiosity.
        self._unanswered += 2 if engine.exits() else 1
        if self._unanswered >= _PATIENCE:
            _log.warning("rayguard: no more canaries are asked: this engine does not answer them")
            self._tolerance = None
        return Heard()

    def _wrong(self, answer: Canary, digest: str, tolerance: float) -> str:
        if ill := sick(answer):
            return ill
        trusted = self._trusted.get(digest, answer)
        differs = disagreement(answer, trusted, tolerance)
        rejected = self._rejected.get(digest)
        if differs and rejected is not None and not disagreement(answer, rejected, tolerance):
            _log.warning(
                "rayguard: two lives of the engine agree against an older one (%s): it was wrong", differs
            )
            trusted, differs = answer, ""
        if differs:
            return f"the engine answers otherwise than it should with these weights: {differs}"
        _keep(self._trusted, digest, trusted)
        return ""

    def reject(self, weights: Weights, heard: Heard) -> None:
        """Remember what a life insists on; if the next one says the same, it is believed."""
        if heard.answer is not None and not sick(heard.answer):
            _keep(self._rejected, weights.digest, heard.answer)

    def prefer(self, weights: Weights, answer: Canary | None) -> None:
        """Hold engines with these weights to what most of them answer; None: to nothing said before."""
        self._trusted.pop(weights.digest, None)
        self._rejected.pop(weights.digest, None)
        if answer is not None:
            _keep(self._trusted, weights.digest, answer)

    def healed(self, weights: Weights, wrong: str) -> None:
        """Tell that loading ``weights`` once more helped."""
        cause = (
            f"with weights {weights.version!r}, proved by their digest, {wrong}; loaded once more, they serve"
        )
        tell(self._around, Kind.WEIGHT_SYNC_FAILED, Scope.ENGINE, cause, _AGAIN)

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
        now = around.now()
        incident = Incident(
            id=uuid.uuid4().hex[:12],
            kind=kind.value,
            scope=scope.value,
            cause=cause,
            signature="rayguard.weights.canary",
            confidence=0.95,
            advice=_ADVICE[remedy],
            detected_at=now,
            closed_at=now,
            remedy=remedy,
            outcome=Outcome.RECOVERED if remedy == _AGAIN else Outcome.FAILED,
        )
        incident = around.signed(incident)
        around.write(incident)
        TALLY.closed(incident)


def _keep(book: OrderedDict[str, Canary], digest: str, answer: Canary) -> None:
    book[digest] = answer
    book.move_to_end(digest)
    while len(book) > _KEPT:
        book.popitem(last=False)
