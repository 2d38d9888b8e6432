"""One push into one engine: proved by receipts, heard by a canary, and made once more where that is wrong.

What follows from its failure is ``rayguard.engine.weights.current``'s.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rayguard.engine.weights.canaries import Canaries, Heard
from rayguard.engine.weights.canary import disagreement
from rayguard.engine.weights.version import verify

if TYPE_CHECKING:
    from rayguard.engine.protocol import Engine
    from rayguard.engine.weights.canary import Canary
    from rayguard.engine.weights.history import PushHistory
    from rayguard.engine.weights.proof import Doubt
    from rayguard.engine.weights.version import Weights

    Loaded = tuple[Heard, str]  # what the engine answers now, and why it was loaded once more

_log = logging.getLogger("rayguard")
_DOUBTED = "other engines answer otherwise than this one"


@dataclass(frozen=True, slots=True)
class Loading:
    """Loads engines; raises what ``Engine.push`` and ``version.verify`` raise."""

    canaries: Canaries
    history: PushHistory
    deadline_s: float

    def load(self, wanted: Weights, engine: Engine) -> Loaded:
        """Push ``wanted`` and hear what the engine makes of it; once more where that is wrong."""
        heard = self._push(wanted, engine)
        if not heard.wrong or heard.diverged:
            return heard, ""
        _log.warning("rayguard: weights %r are loaded once more: %s", wanted.version, heard.wrong)
        return self._again(wanted, engine, heard.wrong), heard.wrong

    def load_again(self, wanted: Weights, engine: Engine, doubt: Doubt, before: Canary | None) -> Loaded:
        """Push what the engine has already, and with which it answered ``before`` otherwise than others."""
        _log.warning("rayguard: weights %r are loaded once more: %s", wanted.version, _DOUBTED)
        self.canaries.prefer(wanted, doubt.answer)
        if doubt.answer is not None:
            return self._again(wanted, engine, _DOUBTED), _DOUBTED
        heard = self._push(wanted, engine)
        now = heard.answer  # where it is the same again, this engine may have been right
        helped = before and now and disagreement(before, now, self.canaries.tolerance)
        return heard, _DOUBTED if helped else ""

    def _again(self, wanted: Weights, engine: Engine, was: str) -> Heard:
        heard = self._push(wanted, engine)
        return heard if heard.answer is not None else Heard(wrong=was)  # nothing shows that it helped

    def _push(self, wanted: Weights, engine: Engine) -> Heard:
        try:
            verify(wanted, engine.push(wanted, deadline_s=self.deadline_s))
        except Exception as error:
            if engine.can_push():
                self.history.failed(wanted, error)
            raise
        return self.canaries.ask(engine, wanted, self.deadline_s)
