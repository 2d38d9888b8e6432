"""The pool's heart: requests to actors, what they tell to whoever asked; on one event loop, without a lock.

Who asks and who is answered is ``desk``; which request is where is ``book``; who works here is ``crew``;
actors come as ``wire.Member`` through a ``Staff``; weights are ``versions``; the public face is ``pool``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import TYPE_CHECKING, Any

from rayguard.actors.pool.book import Book
from rayguard.actors.pool.crew import Crew
from rayguard.actors.pool.desk import Desk
from rayguard.actors.pool.pace import SLOW, Pace
from rayguard.actors.pool.wire import Failed, Finished, Progressed, Restarted
from rayguard.errors import DeadlineError, GaveUpError, QuarantinedError, RequestError
from rayguard.faults.diagnosis import Kind
from rayguard.metrics.pool_tally import RETRIED, PoolTally, RequestOutcome
from rayguard.recovery.harmless import harmless

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine, Sequence

    from rayguard.actors.pool.entries import Entry
    from rayguard.actors.pool.ledger import NoLedger
    from rayguard.actors.pool.policy import PoolPolicy
    from rayguard.actors.pool.request import Order, Request
    from rayguard.actors.pool.result import Sample
    from rayguard.actors.pool.staff import Staff
    from rayguard.actors.pool.versions import Versions
    from rayguard.actors.pool.wire import Event, Hello, Report

_log = logging.getLogger("rayguard")
_RUNS = 8  # of one request, on living actors that could not answer it


class PoolCore:
    """All that happens in a pool. Every method on its loop."""

    def __init__(self, staff: Staff, versions: Versions, policy: PoolPolicy) -> None:
        self.book = Book(policy.quarantine_after)
        self.tally = PoolTally(staff.target)
        self.crew = Crew(self, staff, policy)
        self.connections = self.crew.connections
        self.draining = self.crew.draining
        self.causes = self.crew.causes
        self.desk = Desk(self.book, self._expired, self.tally)
        self.staff = staff
        self.versions = versions
        self._pace = Pace()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._pumping = False
        self._changed = asyncio.Event()
        self.final: GaveUpError | None = None
        versions.bind(self)

    # -- requests

    def take_up(self, ledger: NoLedger) -> None:
        """Go on where the life before this one of the pool's owner ended."""
        self.tally.tokens_saved += self.desk.take_up(ledger)

    def submit(
        self, request: Request, deadline_s: float | None, *, keep: bool = False
    ) -> asyncio.Future[Sample]:
        """Take a request; one that is known already is not made twice (``Desk.ask``).

        Raises:
            RequestError: Its id was used for another question.
            GaveUpError: No engine is left, and none will come.
        """
        if self.final is not None and not self.desk.knows(request.id):
            raise self.final
        future, new = self.desk.ask(request, deadline_s, keep=keep)
        if new:
            self.pump()
        return future

    def cancel(self, request_ids: Sequence[str]) -> None:
        """Give up requests; whoever else waits for them is told."""
        self._drop(request_ids)
        for request_id in request_ids:
            self.desk.fail(
                request_id, RequestError(request_id, "it was given up by a caller"), RequestOutcome.CANCELLED
            )
        self.desk.ledger.gone(request_ids)

    def cancel_groups(self, groups: Collection[str]) -> None:
        """Give up all requests of these prompts."""
        self.cancel(self.desk.of_groups(groups))

    def _expired(self, request_id: str) -> None:
        ticket = self.desk.tickets.get(request_id)
        entry = self.book.entries.get(request_id)
        if ticket is None or entry is None:
            return
        where = f"on {entry.member}" if entry.member else "no engine had room for it"
        state = f"{entry.state.value}, {where}, {len(entry.generated)} tokens so far"
        self._drop((request_id,))
        self.desk.fail(request_id, DeadlineError(request_id, time.monotonic() - ticket.began, state))

    def _drop(self, request_ids: Sequence[str]) -> None:
        """Forget requests; whoever works on them is told, in one call for all that it has."""
        on: dict[str, list[str]] = {}
        for request_id in request_ids:
            entry = self.book.entries.get(request_id)
            if entry is not None and entry.member is not None:
                on.setdefault(entry.member, []).append(request_id)
            self.book.drop(request_id)
        for name, ids in on.items():
            connection = self.connections.get(name)
            if connection is not None:
                self.spawn(connection.abort(ids))
        self.pump()

    # -- actors

    def raise_if_given_up(self) -> None:
        """Raise what callers get when no engine is left."""
        if self.final is not None:
            raise self.final

    def joined(self, name: str, hello: Hello) -> None:
        """Take an actor's new life in. It knows nothing of what may have been given to the one before."""
        self._return(self.book.lose(name, blame=False).quarantined)
        self.book.join(name, hello.capacity, is_open=False)
        connection = self.connections[name]
        loop, session = asyncio.get_running_loop(), hello.session

        def gone(why: str) -> None:
            loop.call_soon_threadsafe(connection.over, why, session)

        with harmless("pool"):
            self.staff.watch(name, hello, gone)
        self.crew.proven = True
        self.versions.joined(name, hello.weight_version)
        self.pump()

    def heard(self, name: str, events: Sequence[Event], report: Report) -> None:
        """Take in what an actor tells."""
        for event in events:
            self._take(name, event)
        self.desk.ledger.flush()
        slot = self.book.slots.get(name)
        if slot is not None:
            self._pace.see(name, report.at_s, report.tokens, len(slot.running))
        if report.weight_version:
            self.versions.seen(name, report.weight_version)
        if report.leaving and name not in self.draining:
            self.spawn(self.crew.relieve(name, report.leaving))
        if events:
            self.pump()

    def left(self, name: str, why: str, *, blame: bool) -> None:
        """A life of an actor is over: others go on with its requests."""
        self.causes[name] = why
        count = len(self.book.slots[name].running) if name in self.book.slots else 0
        if blame:
            _log.warning("rayguard: %s is gone (%s); %d requests go on elsewhere", name, why, count)
        connection = self.connections.get(name)
        kind = Kind.UNKNOWN if connection is None else connection.kind
        if connection is not None:  # else it was dismissed
            self.tally.losses[kind.value] += 1
        with harmless("token_log"):
            hello = None if connection is None else connection.hello
            for request_id, generated in (self.staff.left_behind(hello) if hello else {}).items():
                if self.book.progressed(name, request_id, 0, generated):
                    self.desk.ledger.progressed(request_id, 0, generated)
            self.desk.ledger.flush()
        lost = self.book.lose(name, blame=blame)
        self.tally.interrupted(kind.value, count, self._tokens_of(lost.requeued))
        self.book.set_open(name, is_open=False)
        self._pace.forget(name)
        self._return(lost.quarantined)
        self.pump()

    def ended(self, name: str, error: BaseException) -> None:
        """An actor comes back no more."""
        self.crew.ended(name, error)
        self.pump()

    def remove(self, name: str, kind: str) -> None:
        """Take an actor out of the book; others go on with what it has, cut by ``kind``."""
        lost = self.book.remove(name, blame=False)
        self.tally.interrupted(kind, len(lost.requeued), self._tokens_of(lost.requeued))
        self._return(lost.quarantined)
        self._pace.forget(name)
        self.pump()

    def _tokens_of(self, request_ids: Sequence[str]) -> int:
        return sum(len(self.book.entries[name].generated) for name in request_ids)

    def give_up(self, final: GaveUpError) -> None:
        """Tell whoever waits, and whoever asks from now on, that there will be no answer."""
        self.final = final
        for request_id in list(self.desk.tickets):
            self.book.drop(request_id)
            self.desk.fail(request_id, final)
        self._changed.set()

    def compare(self) -> None:
        """Compare the engines' paces; the slow ones get less."""
        for name, slowness in self._pace.slowness().items():
            slot, counted = self.book.slots.get(name), slowness if slowness >= SLOW else 1.0
            if slot is None or counted == slot.slowness:
                continue
            if slot.slowness < SLOW <= counted:
                _log.warning("rayguard: %s takes %.1f times as long a token as the others", name, slowness)
            self.book.set_slowness(name, counted)

    # -- dispatch and delivery

    def pump(self) -> None:
        """Dispatch what can be dispatched, once for all that happens in this turn of the loop."""
        if not self._pumping:
            self._pumping = True
            asyncio.get_running_loop().call_soon(self._dispatch)

    def _dispatch(self) -> None:
        self._pumping = False
        self._changed.set()
        given = self.book.dispatch()
        if given:
            self.desk.dispatched(given)
        for name, entries in given.items():
            connection = self.connections.get(name)
            if connection is not None:
                self.spawn(connection.send([self._order(name, entry) for entry in entries]))

    def _order(self, name: str, entry: Entry) -> Order:
        if not len(entry.generated):
            return entry.order()
        if self.versions.mixes(name, (version for version, _ in entry.generated.versions)):
            here, made = self.versions.of(name), len(entry.generated)
            before = "+".join(version for version, _ in entry.generated.versions)
            why = f"weights {before!r} made {made} tokens, the engine has {here!r}, max_weight_lag is 0"
            self._restarted(name, Restarted(entry.request.id), why)
        return entry.order()

    def _restarted(self, name: str, event: Restarted, why: str = "") -> None:
        self.book.restarted(name, event.id, why)
        self.desk.ledger.afresh(event.id)
        self.desk.tell(event)

    def _take(self, name: str, event: Event) -> None:
        if isinstance(event, Progressed):
            if self.book.progressed(name, event.id, event.start, event.more):
                self.desk.ledger.progressed(event.id, event.start, event.more)
                self.desk.tell(event)
        elif isinstance(event, Restarted):
            self._restarted(name, event)
        elif isinstance(event, Finished):
            entry = self.book.finished(name, event.id)
            if entry is not None:
                self.desk.deliver(name, entry, event.sample)
        else:
            self._failed(name, event)

    def _failed(self, name: str, event: Failed) -> None:
        entry = self.book.entries.get(event.id)
        if entry is None or entry.member != name:
            return
        if event.retry and entry.runs < _RUNS:
            self.book.again(name, event.id)
            self.tally.interrupted(RETRIED, 1, len(entry.generated))
            return
        self.book.finished(name, event.id)
        self.desk.fail(event.id, event.error)

    def _return(self, quarantined: Sequence[Entry]) -> None:
        for entry in quarantined:
            why = f"{entry.deaths} actors died while it ran on them; it is given to no more of them"
            self.desk.fail(entry.request.id, QuarantinedError(entry.request.id, why))

    async def wait_until(self, condition: Callable[[], bool], until: float) -> bool:
        """Wait until ``condition`` holds, looked at whenever something happens; False at time ``until``."""
        while not condition():
            left_s = until - time.monotonic()
            if left_s <= 0:
                return False
            self._changed.clear()
            with contextlib.suppress(TimeoutError, asyncio.TimeoutError):
                await asyncio.wait_for(self._changed.wait(), left_s)
        return True

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run ``work`` beside; its errors are counted, never lost."""
        task = asyncio.get_running_loop().create_task(_counted(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def close(self) -> None:
        """End everything; whoever still waits is told."""
        closed = GaveUpError(self.staff.target, "the pool was closed", (), "make another pool")
        self.give_up(self.final or closed)
        self.crew.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def _counted(work: Coroutine[Any, Any, Any]) -> None:
    with harmless("pool"):
        await work
