"""What a rollout actor has to tell its pool: kept until the pool says that it has it."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import TYPE_CHECKING

from rayguard.pool.actors.messages import PROGRESS_S, Event, Finished, Progressed, Restarted

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rayguard.engine.generated import Generated

SETTLE_S = 0.01  # after the first event, for others that come at the same moment


class Outbox:
    """Events in order, each with a number. A ``Keeper`` of tokens in flight, for the requests it was told of.

    Invariant: an event is here until it was acknowledged, and its number never changes.
    """

    def __init__(self) -> None:
        self._events: deque[Event] = deque()
        self._first = 0
        self._known: dict[str, int] = {}  # tokens of a request that the pool has, or is about to get
        self._came: dict[str, int] = {}  # tokens of it that were seen here
        self._urgent = asyncio.Event()
        self._any = asyncio.Event()

    def expect(self, request_id: str, known: int) -> None:
        """A request of the pool's is about to begin, of which it has ``known`` tokens."""
        self._known[request_id] = known

    def put(self, event: Event) -> None:
        """Add what a caller waits for."""
        self._events.append(event)
        self._any.set()
        self._urgent.set()

    def done(self, request_id: str) -> None:
        """Nothing more comes of a request."""
        self._known.pop(request_id, None)
        self._came.pop(request_id, None)

    def answered(self, ids: Iterable[str]) -> list[str]:
        """Return those of ``ids`` whose answer still lies here."""
        here = {event.id for event in self._events if isinstance(event, Finished)}
        return [request_id for request_id in ids if request_id in here]

    async def take(
        self, taken: int, wait_s: float, pace_s: float = PROGRESS_S
    ) -> tuple[int, Sequence[Event]]:
        """Drop events before number ``taken``, wait for new ones, return the first number and all events."""
        self.acknowledge(taken)
        if not self._urgent.is_set():
            await _within(self._any, wait_s)
            if self._any.is_set():
                await _within(self._urgent, pace_s)
        if self._urgent.is_set() and self._known:  # with no request left, nothing else will come
            await asyncio.sleep(SETTLE_S)
        return self._first, tuple(self._events)

    def acknowledge(self, taken: int) -> list[Event]:
        """Drop events before number ``taken`` and return them."""
        gone = []
        while self._events and self._first < taken:
            gone.append(self._events.popleft())
            self._first += 1
        if not self._events:
            self._any.clear()
        if not any(not isinstance(event, Progressed) for event in self._events):
            self._urgent.clear()
        return gone

    # -- as a keeper of tokens in flight (rayguard.engine.vllm.inflight)

    def begin(self, request_id: str, fingerprint: str) -> None:  # noqa: ARG002 - a keeper's signature
        """A request begins, or begins again from nothing."""
        if request_id in self._came and request_id in self._known:
            self._known[request_id] = 0
            self.put(Restarted(request_id))
        self._came[request_id] = 0

    def append(self, entries: Sequence[tuple[str, Generated]]) -> None:
        """Tell the pool of tokens that it does not have."""
        for request_id, more in entries:
            known, came = self._known.get(request_id), self._came.get(request_id, 0)
            self._came[request_id] = came + len(more)
            if known is None or came + len(more) <= known:
                continue
            fresh = more.since(max(0, known - came))
            self._events.append(Progressed(request_id, max(came, known), fresh))
            self._known[request_id] = came + len(more)
            self._any.set()

    def end(self, request_ids: Iterable[str]) -> None:
        """The keeper's part is over; what is said of the request itself comes by ``put``."""

    def behind(self, tokens: int) -> None:
        """What the pool has not heard of when this process dies, the token log tells."""


async def _within(event: asyncio.Event, wait_s: float) -> None:
    if not event.is_set():  # ``wait_for`` would make a task all the same
        with contextlib.suppress(TimeoutError, asyncio.TimeoutError):  # two types before Python 3.11
            await asyncio.wait_for(event.wait(), wait_s)
