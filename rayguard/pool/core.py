"""The pool's heart: requests to actors, what they tell to whoever asked; on one event loop, without a lock.

Who asks and who is answered is ``tickets``; which request is where is ``book``; who works here is ``fleet``;
actors come as ``RolloutActor`` through an ``ActorProvider``; the weights are in ``weights``; the public face
``pool``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import TYPE_CHECKING

from rayguard.errors import DeadlineError, GaveUpError, QuarantinedError, RequestError
from rayguard.harmless import harmless
from rayguard.metrics.instruments.pool_tally import RETRIED, PoolTally, RequestOutcome
from rayguard.pool.actor_deaths import ActorDeaths
from rayguard.pool.actors.messages import LOGGED_S, PROGRESS_S, CallFailed, Finished, Progressed, Restarted
from rayguard.pool.book import Book
from rayguard.pool.engine_speed import EngineSpeed
from rayguard.pool.fleet import Fleet
from rayguard.pool.tickets import Tickets
from rayguard.pool.weights.push import WeightVersions

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from rayguard.pool.actors.messages import ActorReport, Event, Hello
    from rayguard.pool.entries import Entry
    from rayguard.pool.ledger.request_ledger import NoLedger
    from rayguard.pool.ports import ActorProvider
    from rayguard.pool.values.policy import PoolPolicy
    from rayguard.pool.values.request import Order, Request
    from rayguard.pool.values.result import Sample

_log = logging.getLogger("rayguard")
_RUNS = 8  # of one request, on living actors that could not answer it


class PoolCore:
    """All that happens in a pool. Every method on its loop."""

    def __init__(self, provider: ActorProvider, policy: PoolPolicy) -> None:
        self.book = Book(policy.quarantine_after)
        self.tally = PoolTally(provider.target)
        self.tickets = Tickets(self.book, self._expired, self.tally)
        self.deaths = ActorDeaths(self.book, self.tickets, provider, spares=policy.spares)
        self.losses = self.deaths.losses
        self.fleet = Fleet(self, provider, policy)
        self.connections = self.fleet.connections
        self.draining = self.fleet.draining
        self.causes = self.fleet.causes
        self.provider = provider
        self.versions = WeightVersions(self, self.fleet, provider, policy.max_weight_lag)
        self.speed = EngineSpeed()
        self._tasks: set[asyncio.Task[None]] = set()
        self._pumping = False
        self._changed = asyncio.Event()
        self.final: GaveUpError | None = None

    # -- requests

    def take_up(self, ledger: NoLedger) -> None:
        """Go on where the life before this one of the pool's owner ended."""
        self.tickets.take_up(ledger, self.deaths.left_in)

    def submit(
        self, request: Request, deadline_s: float | None, *, keep: bool = False
    ) -> asyncio.Future[Sample]:
        """Take a request; one that is known already is not made twice (``Tickets.ask``).

        Raises:
            RequestError: Its id was used for another question.
            GaveUpError: No engine is left, and none will come.
        """
        if self.final is not None and not self.tickets.knows(request.id):
            raise self.final
        future, new = self.tickets.ask(request, deadline_s, keep=keep)
        if new:
            self.pump()
        return future

    def cancel(self, request_ids: Sequence[str]) -> None:
        """Give up requests; whoever else waits for them is told."""
        self._drop(request_ids)
        for request_id in request_ids:
            self.tickets.fail(
                request_id, RequestError(request_id, "it was given up by a caller"), RequestOutcome.CANCELLED
            )
        self.tickets.ledger.gone(request_ids)

    def _expired(self, request_id: str) -> None:
        ticket = self.tickets.waiting.get(request_id)
        entry = self.book.entries.get(request_id)
        if ticket is None or entry is None:
            return
        where = f"running, on {entry.engine}" if entry.engine else "queued, no engine had room for it"
        state = f"{where}, {len(entry.generated)} tokens so far"
        self._drop((request_id,))
        self.tickets.fail(request_id, DeadlineError(request_id, time.monotonic() - ticket.began, state))

    def _drop(self, request_ids: Sequence[str]) -> None:
        """Forget requests; whoever works on them is told, in one call for all that it has."""
        on: dict[str, list[str]] = {}
        for request_id in request_ids:
            entry = self.book.entries.get(request_id)
            if entry is not None and entry.engine is not None:
                on.setdefault(entry.engine, []).append(request_id)
            self.book.drop(request_id)
        for name, ids in on.items():
            connection = self.connections.get(name)
            if connection is not None:
                self.spawn(connection.abort(ids))
        self.pump()

    # -- actors

    def joined(self, name: str, hello: Hello) -> None:
        """Take an actor's new life in. It knows nothing of what may have been given to the one before."""
        self._return(self.book.lose(name, blame=False).quarantined)
        self.book.join(name, hello.capacity, is_open=False)
        connection = self.connections[name]
        loop, session = asyncio.get_running_loop(), hello.session

        def gone(why: str) -> None:
            loop.call_soon_threadsafe(connection.over, why, session)

        with harmless("pool"):
            self.provider.watch(name, hello, gone)
        self.fleet.proven = True
        self.losses.met(name, hello)
        if self._reads_log(hello):
            self.tickets.ledger.logged(hello.token_log, hello.node_id)
        self.versions.own_pushes.joined(name, hello)
        self.versions.joined(name, hello.weight_version)
        self.pump()

    def _reads_log(self, hello: Hello) -> bool:
        return bool(hello.token_log and hello.node_id) and hello.node_id == self.provider.node_id

    def pace_s(self, hello: Hello) -> float:
        """Return how long tokens may wait at an actor for others: longer where its log lies on this node."""
        return LOGGED_S if self._reads_log(hello) and not self.tickets.streamed else PROGRESS_S

    def heard(self, name: str, events: Sequence[Event], report: ActorReport) -> None:
        """Take in what an actor tells."""
        for event in events:
            self._take(name, event)
        self.tickets.ledger.flush()
        slot = self.book.slots.get(name)
        if slot is not None:
            self.speed.see(name, report.at_s, report.tokens, len(slot.running))
        self.versions.own_pushes.heard(name, report)
        if report.weight_version:
            self.versions.seen(name, report.weight_version)
        if report.leaving and name not in self.draining:
            self.spawn(self.fleet.relieve(name, report.leaving))
        if events:
            self.pump()

    def left(self, name: str, why: str, *, blame: bool) -> None:
        """A life of an actor is over: others go on with its requests."""
        self.causes[name] = why
        connection = self.connections.get(name)
        if connection is None:  # it was dismissed, and has nothing any more
            return
        lost = self.deaths.take(connection, why, blame=blame)
        if connection.hello is not None:
            self.tickets.ledger.gone([connection.hello.token_log])
        self.book.set_open(name, is_open=False)
        self.speed.forget(name)
        self._return(lost.quarantined)
        self.pump()

    def ended(self, name: str, error: BaseException) -> None:
        """An actor comes back no more."""
        self.deaths.for_good(name)
        self.fleet.ended(name, error)
        self.pump()

    def remove(self, name: str, kind: str) -> None:
        """Take an actor out of the book; others go on with what it has, cut by ``kind``."""
        lost = self.book.remove(name, blame=False)
        self.tally.interrupted(kind, len(lost.requeued))
        self._return(lost.quarantined)
        self.speed.forget(name)
        self.pump()

    def give_up(self, final: GaveUpError) -> None:
        """Tell whoever waits, and whoever asks from now on, that there will be no answer."""
        self.final = final
        for request_id in list(self.tickets.waiting):
            self.book.drop(request_id)
            self.tickets.fail(request_id, final)
        self._changed.set()

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
            self.tickets.dispatched(given)
        for name, entries in given.items():
            if self.losses.open:
                self.losses.went_on(name, [entry.request.id for entry in entries])
            connection = self.connections.get(name)
            if connection is not None:
                self.spawn(connection.send([self._order(name, entry) for entry in entries]))
        self.deaths.look(self.book.entries)

    def _order(self, name: str, entry: Entry) -> Order:
        if not len(entry.generated):
            return entry.order()
        if self.versions.mixes(name, (version for version, _ in entry.generated.versions)):
            here, made = self.versions.of(name), len(entry.generated)
            before = "+".join(version for version, _ in entry.generated.versions)
            why = f"weights {before!r} made {made} tokens, the engine has {here!r}, max_weight_lag is 0"
            self._restarted(name, Restarted(entry.request.id), why)
        self.tally.tokens_saved += len(entry.generated)
        return entry.order()

    def _restarted(self, name: str, event: Restarted, why: str = "") -> None:
        self.losses.afresh(event.id, self.book.restarted(name, event.id, why))
        self.tickets.ledger.afresh(event.id)
        self.tickets.tell(event)

    def _take(self, name: str, event: Event) -> None:
        if isinstance(event, Progressed):
            if self.book.progressed(name, event.id, event.start, event.more):
                self.losses.resumed(event.id, time.monotonic())
                self.tickets.ledger.progressed(event.id, event.start, event.more)
                self.tickets.tell(event)
        elif isinstance(event, Restarted):
            self._restarted(name, event)
        elif isinstance(event, Finished):
            entry = self.book.finished(name, event.id)
            if entry is not None:
                self.losses.resumed(event.id, time.monotonic())
                self.tickets.deliver(name, entry, event.sample)
        else:
            self._failed(name, event)

    def _failed(self, name: str, event: CallFailed) -> None:
        entry = self.book.entries.get(event.id)
        if entry is None or entry.engine != name:
            return
        if event.retry and entry.runs < _RUNS:
            self.book.again(name, event.id)
            self.tally.interrupted(RETRIED, 1)
            return
        self.book.finished(name, event.id)
        self.tickets.fail(event.id, event.error)

    def _return(self, quarantined: Sequence[Entry]) -> None:
        for entry in quarantined:
            why = f"{entry.deaths} actors died while it ran on them; it is given to no more of them"
            self.tickets.fail(entry.request.id, QuarantinedError(entry.request.id, why))

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

    def spawn(self, work: Coroutine[object, object, object]) -> asyncio.Task[None]:
        """Run ``work`` in the background; its errors are counted, never lost."""
        task = asyncio.get_running_loop().create_task(_counted(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def close(self) -> None:
        """End everything; whoever still waits is told."""
        closed = GaveUpError(self.provider.target, "the pool was closed", (), "make another pool")
        await self.deaths.close()
        self.give_up(self.final or closed)
        self.fleet.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def _counted(work: Coroutine[object, object, object]) -> None:
    with harmless("pool"):
        await work
