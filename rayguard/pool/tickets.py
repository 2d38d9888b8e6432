"""Whoever asks: each id has one question and one answer, whoever asks for it and how often.

Knows nothing of actors. What an answer is made of is ``core``'s; what survives the owner is the ``ledger``'s.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

from rayguard.errors import DeadlineError, QuarantinedError, RequestError
from rayguard.harmless import harmless
from rayguard.metrics.instruments.pool_tally import PoolTally, RequestOutcome
from rayguard.pool.actors.messages import CallFailed, Event, Finished
from rayguard.pool.ledger.records import Past
from rayguard.pool.ledger.request_ledger import NoLedger

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from rayguard.actors.token_logs import LeftBehind
    from rayguard.pool.book import Book
    from rayguard.pool.entries import Entry
    from rayguard.pool.values.request import Request
    from rayguard.pool.values.result import Sample

REMEMBERED = 8192  # answers, for callers that ask for the same once more
Question: TypeAlias = "str | int"  # a fingerprint or a likeness: prompts would take too much memory


@dataclass(slots=True)
class Ticket:
    """Who waits for a request."""

    request: Request
    future: asyncio.Future[Sample]
    began: float
    fingerprint: str = ""  # of the request, where it is in the ledger
    expiry: asyncio.TimerHandle | None = None

    @property
    def question(self) -> Question:
        """Return what was asked."""
        return self.fingerprint or self.request.likeness


class Tickets:
    """Tickets of those who wait, and answers for those who ask again.

    Invariant: an id has a ticket exactly while its entry is in the book; its future is set once.
    """

    def __init__(self, book: Book, expired: Callable[[str], None], tally: PoolTally) -> None:
        self.tally = tally
        self.ledger = NoLedger()
        self.waiting: dict[str, Ticket] = {}
        self.answered: OrderedDict[str, tuple[Question, Sample]] = OrderedDict()
        self._book = book
        self._expired = expired
        self._listeners: dict[str, list[Callable[[Event], None]]] = {}

    def take_up(self, ledger: NoLedger, left_in: Callable[[str, str], LeftBehind]) -> None:
        """Go on where the owner's life before this one ended.

        ``left_in`` returns what is in the token log of an actor, by its path and its node: newer than what
        the owner was told.
        """
        self.ledger, past, ledger.past = ledger, ledger.past, Past()
        logs = [left_in(token_log, node) for token_log, node in past.logs.items()]
        self.answered.update((name, (a.fingerprint, a.sample)) for name, a in past.answered.items())
        self._forget_oldest()
        for owed in past.owed:
            future: asyncio.Future[Sample] = asyncio.get_running_loop().create_future()
            future.add_done_callback(lambda done: done.cancelled() or done.exception())  # perhaps nobody asks
            request = owed.request
            for log in logs:
                made = log.answer_to(request.id, owed.fingerprint)
                if made is not None:
                    owed.join(0, made)
                    ledger.progressed(request.id, 0, made)
            self.waiting[request.id] = Ticket(request, future, time.monotonic(), owed.fingerprint)
            self._book.accept(request, owed.generated).question = owed.fingerprint
        ledger.gone(past.logs)
        ledger.flush()

    def ask(
        self, request: Request, deadline_s: float | None, *, keep: bool = False
    ) -> tuple[asyncio.Future[Sample], bool]:
        """Take a request; return its future, and whether it is new here. ``keep``: put it into the ledger.

        Raises:
            RequestError: Its id was used for another question.
        """
        known = self.waiting.get(request.id)
        if known is not None:
            self._same(request, known.question)
            if known.expiry is None:
                self._expire(known, deadline_s)
            return known.future, False
        answered = self.answered.get(request.id)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Sample] = loop.create_future()
        if answered is not None:
            self._same(request, answered[0])
            future.set_result(answered[1])
            return future, False
        ticket = Ticket(request, future, time.monotonic(), request.fingerprint if keep else "")
        self._expire(ticket, deadline_s)
        self.waiting[request.id] = ticket
        self._book.accept(request).question = ticket.fingerprint
        if keep:
            self.ledger.accepted(request, ticket.fingerprint)
        return future, True

    def _expire(self, ticket: Ticket, deadline_s: float | None) -> None:
        if deadline_s is not None:
            loop = asyncio.get_running_loop()
            ticket.expiry = loop.call_later(deadline_s, self._expired, ticket.request.id)

    @staticmethod
    def _same(request: Request, known: Question) -> None:
        if known != (request.fingerprint if isinstance(known, str) else request.likeness):
            raise RequestError(
                request.id, "this id was used for another prompt or other sampling options: give each its own"
            )

    @property
    def streamed(self) -> bool:
        """Whether anybody reads tokens as they come."""
        return bool(self._listeners)

    def knows(self, request_id: str) -> bool:
        """Say whether an id was asked for here."""
        return request_id in self.waiting or request_id in self.answered

    def listen(self, request_id: str, listener: Callable[[Event], None]) -> None:
        """Call ``listener`` with what happens to a request."""
        self._listeners.setdefault(request_id, []).append(listener)

    def of_groups(self, names: Collection[str]) -> list[str]:
        """Return the ids of the requests of these prompts."""
        return [request_id for request_id, ticket in self.waiting.items() if ticket.request.group in names]

    def forget(self, request_ids: Sequence[str]) -> None:
        """Forget answers that nobody will ask for again."""
        for request_id in request_ids:
            self.answered.pop(request_id, None)
        self.ledger.gone(request_ids)

    def dispatched(self, given: Mapping[str, Sequence[Entry]]) -> None:
        """Note what goes to engines: in the ledger before they have it, and how long it waited at first."""
        self.ledger.flush()
        with harmless("metrics"):
            now, tickets = time.monotonic(), self.waiting
            self.tally.waited(
                [now - tickets[e.request.id].began for new in given.values() for e in new if e.runs == 1]
            )

    def deliver(self, name: str, entry: Entry, sample: Sample) -> None:
        """Hand an answer to whoever waits, and keep it for who asks again."""
        ticket = self.waiting.pop(entry.request.id, None)
        if ticket is None:
            return
        prompt = sample.prompt_token_ids or ticket.request.prompt
        sample = replace(
            sample,
            engine=name,
            prompt_token_ids=() if isinstance(prompt, str) else tuple(prompt),
            restarted=(*entry.afresh, *sample.restarted),
        )
        self.tally.delivered += 1
        self.answered[entry.request.id] = (ticket.question, sample)
        self.ledger.answered(entry.request.id, ticket.fingerprint, sample)
        self._forget_oldest()
        self.tell(Finished(entry.request.id, sample))
        self._close(ticket)
        if not ticket.future.done():
            ticket.future.set_result(sample)

    def _forget_oldest(self) -> None:
        while len(self.answered) > REMEMBERED:
            self.ledger.gone((self.answered.popitem(last=False)[0],))

    def fail(self, request_id: str, error: Exception, outcome: RequestOutcome | None = None) -> None:
        """Tell whoever waits that there will be no answer."""
        ticket = self.waiting.pop(request_id, None)
        if ticket is None:
            return
        self.tally.unanswered[(outcome or _outcome(error)).value] += 1
        self.ledger.gone((request_id,))
        self.tell(CallFailed(request_id, error))
        self._close(ticket)
        if not ticket.future.done():
            ticket.future.set_exception(error)
            ticket.future.exception()  # where nobody waits any more, asyncio need not complain of that

    def tell(self, event: Event) -> None:
        """Tell the listeners of a request what happened to it."""
        for listener in self._listeners.get(event.id, ()):
            with harmless("pool"):
                listener(event)

    def _close(self, ticket: Ticket) -> None:
        self._listeners.pop(ticket.request.id, None)
        if ticket.expiry is not None:
            ticket.expiry.cancel()


def _outcome(error: Exception) -> RequestOutcome:
    if isinstance(error, QuarantinedError):
        return RequestOutcome.QUARANTINED
    if isinstance(error, RequestError):
        return RequestOutcome.REFUSED
    return RequestOutcome.LATE if isinstance(error, DeadlineError) else RequestOutcome.FAILED
