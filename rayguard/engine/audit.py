"""The audit: a share of the greedy requests of an engine is answered again, and the two answers are compared.

An engine can give a request wrong tokens because of what runs or ran beside it (a cache block that somebody
else wrote, a row of another batch), and nothing says so. A greedy request has one answer: where it is asked
again, without what the caches hold, the tokens are the same, or two were as likely as each other. Which
requests are audited and how they are asked again is each adapter's (``Engine.audited_by``,
``Engine.answer_again``); what an answer says is ``rayguard.engine.weights.canary.disagreement``.

The answer has been handed out when it is audited: what an audit saves is the answers after it.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
from typing import TYPE_CHECKING

from typing_extensions import override

from rayguard.engine.audited_answer import AuditedAnswer, Auditor
from rayguard.engine.weights.canary import Canary, disagreement
from rayguard.errors import WrongTokensError
from rayguard.harmless import harmless

if TYPE_CHECKING:
    from collections.abc import Callable

    from rayguard.engine.protocol import Engine
    from rayguard.recovery.tally import EngineTally

    Wrong = Callable[[WrongTokensError, Engine], object]

_log = logging.getLogger("rayguard")
_WAITING = 256  # answers that may wait; what comes beyond is not audited
_AGAIN_S = 0.25
_PATIENCE_S = 120.0  # until the engine has time for it
_SLOWER = 4.0  # than it was answered the first time
UNTOLD_NATS = 0.5  # within which two tokens count as equally likely where no ``canary_tolerance`` says so
_NONE_GREEDY = 1000  # requests, after which it is said that none could be audited


class Audit(Auditor):
    """The audit of one engine slot: chooses, asks in a thread of its own, and reports what is wrong.

    ``share`` of the greedy requests (0 to 1) is audited; two tokens count as equally likely within
    ``tolerance`` nats. ``ready`` returns the engine that serves now, ``wrong`` is told of a contradiction.
    """

    def __init__(
        self,
        share: float,
        tolerance: float,
        *,
        ready: Callable[[], Engine | None],
        wrong: Wrong,
        tally: EngineTally,
    ) -> None:
        self._share, self._tolerance = share, tolerance
        self._ready, self._wrong, self._tally = ready, wrong, tally
        self._due = 0.0
        self._not_greedy = 0
        self._answers: queue.Queue[AuditedAnswer] = queue.Queue(_WAITING)
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    @override
    def chooses(self, *, greedy: bool) -> bool:
        if not greedy:
            self._not_greedy += 1
            if self._not_greedy == _NONE_GREEDY:
                _log.warning(
                    "rayguard: GuardPolicy.audit audits greedy requests (temperature 0), and of the last %d "
                    "there was none",
                    _NONE_GREEDY,
                )
            return False
        self._not_greedy = 0
        self._due += self._share
        if self._due < 1.0:
            return False
        self._due -= 1.0
        return True

    @override
    def take(self, answer: AuditedAnswer) -> None:
        with contextlib.suppress(queue.Full):
            self._answers.put_nowait(answer)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="rayguard-audit", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Ask no more."""
        self._closed.set()

    def _run(self) -> None:
        while not self._closed.is_set():
            with contextlib.suppress(queue.Empty):
                answer = self._answers.get(timeout=1.0)
                with harmless("audit"):
                    self.judge(answer)

    def judge(self, answer: AuditedAnswer) -> None:
        """Have ``answer`` made again and compare; where it is outdated or cannot be made, say nothing."""
        said = Canary(tuple(((token, 0.0),) for token in answer.tokens), bare=True)
        again = self._again(answer, closely=False)
        wrong = again is not None and disagreement(again, said, self._tolerance)
        if wrong:  # which two tokens that are as likely as each other may bring, too: that is told by numbers
            again = self._again(answer, closely=True)
            wrong = again is not None and not again.bare and disagreement(again, said, self._tolerance)
        engine = self._ready()
        if again is None or answer.outdated() or engine is None:
            return
        self._tally.audited += 1
        if wrong:
            self._tally.audited_wrong += 1
            self._wrong(WrongTokensError(answer.name, len(answer.tokens), wrong), engine)

    def _again(self, answer: AuditedAnswer, *, closely: bool) -> Canary | None:
        """Return what is answered now, once the engine has time; None where it never has."""
        deadline_s = _PATIENCE_S + _SLOWER * answer.took_s
        for _ in range(int(_PATIENCE_S / _AGAIN_S)):
            engine = self._ready()
            if answer.outdated() or self._closed.is_set():
                return None
            if engine is not None:
                try:
                    again = engine.answer_again(answer, deadline_s=deadline_s, closely=closely)
                except Exception:
                    if answer.outdated():
                        return None
                    raise
                if again is not None:
                    return None if again.error else again
            self._closed.wait(_AGAIN_S)
        return None
