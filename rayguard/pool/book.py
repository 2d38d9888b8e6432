"""Which request is where: every accepted one is delivered once, whatever becomes of the engines.

Pure: no clock, thread, Ray or engine. Orders are carried out and results brought in by ``core``.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from typing import TYPE_CHECKING

from rayguard.engine.generated import Generated
from rayguard.pool.entries import Entry, Lost, Slot

if TYPE_CHECKING:
    from rayguard.pool.values.request import Request

_VOID = 8  # times the number of slots: places in the heap, nearly all of them void then


class Book:
    """All requests of a pool.

    Invariants: an entry that is not done is either in the queue or running in exactly one slot; a request
    that was running on ``quarantine_after`` actors as they died runs no more; from one death before that on
    it runs alone, so that the guilty one is found.
    """

    def __init__(self, quarantine_after: int = 3) -> None:
        self._quarantine_after = quarantine_after
        self.entries: dict[str, Entry] = {}
        self.slots: dict[str, Slot] = {}
        self.hold = False  # only what was begun goes on
        self._queue: OrderedDict[str, Entry] = OrderedDict()  # any of them can leave it, at the same cost
        self._suspects: OrderedDict[str, Entry] = OrderedDict()
        self._heap: list[tuple[float, int, str, int]] = []  # of slots with room, and void places of theirs
        self._joined = 0
        self._order: dict[str, int] = {}

    # -- requests

    @property
    def queued(self) -> int:
        """Requests that wait for an engine."""
        return len(self._queue) + len(self._suspects)

    @property
    def running(self) -> int:
        """Requests that are with an engine."""
        return len(self.entries) - self.queued

    @property
    def serving(self) -> int:
        """Engines that get requests. From any thread."""
        return sum(slot.open for slot in list(self.slots.values()))

    @property
    def begun(self) -> int:
        """Requests that wait for another engine to go on with them."""
        waiting = (*self._queue.values(), *self._suspects.values())
        return sum(len(entry.generated) > 0 for entry in waiting)

    def accept(self, request: Request, generated: Generated | None = None) -> Entry:
        """Take a request; one with its id must not be here."""
        assert request.id not in self.entries, request.id
        entry = Entry(request)
        if generated is not None and len(generated):
            entry.generated, entry.cuts = generated, (len(generated),)
        self.entries[request.id] = self._queue[request.id] = entry
        return entry

    def drop(self, request_id: str) -> Entry | None:
        """Forget a request; return it if it was here (``engine`` then says who still works on it)."""
        entry = self.entries.pop(request_id, None)
        if entry is None:
            return None
        if entry.engine is not None:
            self._leave(entry)
        self._queue.pop(request_id, None)
        self._suspects.pop(request_id, None)
        return entry

    def progressed(self, engine: str, request_id: str, start: int, more: Generated) -> bool:
        """Note tokens from index ``start`` on; False for news that are late or do not join on."""
        entry = self._of(engine, request_id)
        if entry is None or start > len(entry.generated):
            return False
        known = len(entry.generated)
        fresh = more.since(known - start) if known > start else more
        if len(fresh):
            entry.generated = entry.generated.plus(fresh) if known else fresh
        return True

    def again(self, engine: str, request_id: str) -> Entry | None:
        """Take a request back that an actor could not answer though it lives: another one may."""
        entry = self._of(engine, request_id)
        if entry is None:
            return None
        self._leave(entry)
        entry.cut()
        _put_first(self._queue, entry)
        return entry

    def restarted(self, engine: str, request_id: str, why: str = "") -> int:
        """Note that it begins afresh: an engine could not go on exactly, or the pool will not (``why``).

        Returns how many tokens are void.
        """
        entry = self._of(engine, request_id)
        if entry is None:
            return 0
        made = len(entry.generated)
        entry.generated, entry.cuts = Generated(), ()
        entry.afresh = (*entry.afresh, why) if why else entry.afresh
        return made

    def finished(self, engine: str, request_id: str) -> Entry | None:
        """Take a request off, done; None when the news is late: it runs elsewhere, or was delivered."""
        entry = self._of(engine, request_id)
        if entry is None:
            return None
        self._leave(entry)
        del self.entries[request_id]
        return entry

    # -- actors

    def join(self, name: str, capacity: int, *, is_open: bool = True) -> Slot:
        """Add an actor, or give the one of that name another capacity."""
        slot = self.slots.get(name)
        if slot is None:
            slot = self.slots[name] = Slot(name, capacity, is_open)
            self._joined += 1
            self._order[name] = self._joined
        slot.capacity, slot.open = capacity, is_open
        self._place(slot)
        return slot

    def set_open(self, name: str, *, is_open: bool) -> None:
        """Let an actor have new requests, or no more of them."""
        slot = self.slots.get(name)
        if slot is not None and slot.open != is_open:
            slot.open = is_open
            self._place(slot)

    def set_slowness(self, name: str, slowness: float) -> None:
        """Give an actor less, the slower it is."""
        slot = self.slots.get(name)
        if slot is not None:
            slot.slowness = slowness
            self._place(slot)

    def lose(self, name: str, *, blame: bool) -> Lost:
        """An actor is gone or is given up: its requests go back to the head of the queue, in their order.

        ``blame``: it died while they ran; each of them may have been the cause.
        """
        slot = self.slots.get(name)
        if slot is None:
            return Lost()
        entries, slot.running, slot.alone = list(slot.running.values()), {}, False
        self._place(slot)
        quarantined = []
        for entry in reversed(entries):
            entry.cut()
            if blame:
                entry.deaths += 1
            if entry.deaths >= self._quarantine_after:
                del self.entries[entry.request.id]
                quarantined.append(entry)
            elif entry.deaths == self._quarantine_after - 1 and self._quarantine_after > 1:
                _put_first(self._suspects, entry)
            else:
                _put_first(self._queue, entry)
        requeued = tuple(entry.request.id for entry in entries if entry.request.id in self.entries)
        return Lost(requeued, tuple(quarantined))

    def remove(self, name: str, *, blame: bool = False) -> Lost:
        """Take an actor out of the book."""
        lost = self.lose(name, blame=blame)
        self.slots.pop(name, None)
        self._order.pop(name, None)
        return lost

    # -- dispatch

    def dispatch(self) -> dict[str, list[Entry]]:
        """Give queued requests to the actors with most room; the completions of one prompt stay together.

        Together they share the prompt's prefix cache. The cost of a round grows with what is dispatched, not
        with the number of actors.
        """
        given: dict[str, list[Entry]] = {}
        self._place_suspects(given)
        reserved = self._reserved()
        beside: tuple[str, Slot] | None = None  # the last one's group and where it went
        while self._queue:
            entry = next(iter(self._queue.values()))
            if self.hold and not len(entry.generated):
                break  # what was begun was put at the head
            together = beside is not None and beside[0] == entry.request.group and beside[1].room
            slot = beside[1] if beside is not None and together else self._emptiest(reserved)
            if slot is None:
                break
            self._queue.popitem(last=False)
            self._give(slot, entry, given)
            beside = (entry.request.group, slot)
        return given

    def _place_suspects(self, given: dict[str, list[Entry]]) -> None:
        """Run each suspect alone on an actor; one is kept free for them while any wait."""
        if not self._suspects:
            return
        for slot in sorted((s for s in self.slots.values() if s.open), key=lambda s: len(s.running)):
            if not self._suspects:
                return
            if slot.running:
                continue
            if self.hold and not len(next(iter(self._suspects.values())).generated):
                return
            _, entry = self._suspects.popitem(last=False)
            self._give(slot, entry, given)
            slot.alone = True

    def _emptiest(self, reserved: str | None) -> Slot | None:
        kept = found = None
        while self._heap and found is None:
            _, _, name, version = self._heap[0]
            slot = self.slots.get(name)
            if slot is None or slot.version != version or not slot.room:
                heapq.heappop(self._heap)
            elif name == reserved:  # it runs empty, for a suspect
                kept = heapq.heappop(self._heap)
            else:
                found = slot
        if kept is not None:
            heapq.heappush(self._heap, kept)
        return found

    def _reserved(self) -> str | None:
        """Return the actor that gets nothing until a waiting suspect can run on it alone."""
        if not self._suspects:
            return None
        candidates = [slot for slot in self.slots.values() if slot.open and not slot.alone]
        return min(candidates, key=lambda slot: len(slot.running)).name if candidates else None

    def _give(self, slot: Slot, entry: Entry, given: dict[str, list[Entry]]) -> None:
        entry.engine = slot.name
        entry.runs += 1
        slot.running[entry.request.id] = entry
        self._place(slot)
        given.setdefault(slot.name, []).append(entry)

    def _of(self, engine: str, request_id: str) -> Entry | None:
        entry = self.entries.get(request_id)
        return entry if entry is not None and entry.engine == engine else None

    def _leave(self, entry: Entry) -> None:
        slot = self.slots.get(entry.engine or "")
        entry.engine = None
        if slot is not None:
            slot.running.pop(entry.request.id, None)
            slot.alone = False
            self._place(slot)

    def _place(self, slot: Slot) -> None:
        slot.version += 1
        if slot.room:
            heapq.heappush(self._heap, self._rank(slot))
        if len(self._heap) > _VOID * len(self.slots) + _VOID:  # those of fuller engines are seldom popped
            self._heap = [self._rank(slot) for slot in self.slots.values() if slot.room]
            heapq.heapify(self._heap)

    def _rank(self, slot: Slot) -> tuple[float, int, str, int]:
        return slot.load, self._order[slot.name], slot.name, slot.version


def _put_first(queue: OrderedDict[str, Entry], entry: Entry) -> None:
    queue[entry.request.id] = entry
    queue.move_to_end(entry.request.id, last=False)
